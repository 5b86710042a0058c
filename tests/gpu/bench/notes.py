"""Notes from a job's process to its parent: one line of JSON per event.

Written lines survive the process. A figure that has begun and has no later line is the one during
which the process ended.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

Values = dict[str, Any]
Kind = Literal["begun", "found", "failed", "left out"]


class Notes:
    """Writes the lines of one job."""

    def __init__(self, path: Path, subject: str) -> None:
        self._path = path
        self._subject = subject

    def add(self, kind: Kind, figure: str, said: Values | str = "") -> None:
        """Write and print a line with values or a reason."""
        line = json.dumps({"kind": kind, "figure": figure, "said": said})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(f"{self._subject}: {figure}: {kind} {said}", flush=True)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def add_to_report(report: Values, subject: str, lines: list[dict[str, Any]], end: str) -> None:
    """Add a job's lines to the report.

    Args:
        report: "figures" maps subject and figure to values or an "error"; "left_out" maps each
            figure that was not started to a reason.
        subject: The job's.
        lines: All of the job's lines so far, as `read` returns them; may be passed repeatedly.
        end: How the process failed, if it did: becomes the error of the figure in progress.
    """
    figures = report["figures"].setdefault(subject, {})
    in_flight = ""
    for line in lines:
        name = line["figure"]
        in_flight = name if line["kind"] == "begun" else ""
        if line["kind"] == "found":
            figures[name] = line["said"]
        elif line["kind"] == "failed":
            figures[name] = {"error": line["said"]}
        elif line["kind"] == "left out":
            report["left_out"][f"{subject}: {name}"] = line["said"]
    if end:
        figures[in_flight or "process"] = {"error": end}
