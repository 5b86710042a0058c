"""What a job's process tells the one that started it: a line of JSON for each thing that happens.

Lines that are written stay, whatever becomes of the process; a figure that has begun and is not
told about afterwards is the one that it ended in.
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
        """Add a line, and print it: values, or a reason."""
        line = json.dumps({"kind": kind, "figure": figure, "said": said})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(f"{self._subject}: {figure}: {kind} {said}", flush=True)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines that are whole."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def add_to_report(report: Values, subject: str, lines: list[dict[str, Any]], end: str) -> None:
    """Put a job's lines into the report.

    Args:
        report: Its "figures" has, for each subject and figure, values, or an "error"; its
            "left_out" a reason for each figure that was not begun.
        subject: The job's.
        lines: All of the job's, as `read` returns them; may be given again, with more.
        end: How the process ended, if badly: the error of the figure that was under way.
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
