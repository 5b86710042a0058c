"""Combines the results of run.sh's parts into one JSON file and one text.

    python -m tests.gpu.summary WORK OUT

WORK has `parts.tsv`, a line for each finished part (name, status, exit code, seconds), and the
parts' files: facts.json, tests.xml; OUT has bench.json. Needs neither torch nor the package, so
it works whatever failed.
"""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from tests.gpu.bench import report as bench

Report = dict[str, Any]


def read_parts(work: Path) -> list[Report]:
    """Return the finished parts."""
    parts = []
    for line in (work / "parts.tsv").read_text(encoding="utf-8").splitlines():
        name, status, code, seconds = line.split("\t")
        parts.append(
            {"name": name, "status": status, "exit_code": int(code), "seconds": int(seconds)}
        )
    return parts


def read_json(path: Path) -> Report | None:
    """Return a part's file; None if it is missing or incomplete."""
    try:
        found: Report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def read_tests(path: Path) -> Report | None:
    """Return the counts of a JUnit file and the names of failed and skipped tests."""
    try:
        cases = list(ElementTree.parse(path).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return None

    def names(*kinds: str) -> list[str]:
        return [
            str(case.get("name")) for case in cases if any(case.find(k) is not None for k in kinds)
        ]

    failed, skipped = names("failure", "error"), names("skipped")
    return {
        "passed": len(cases) - len(failed) - len(skipped),
        "failed": failed,
        "skipped": skipped,
    }


def gather(work: Path, out: Path) -> Report:
    """Return all available results."""
    measured = read_json(out / "bench.json")
    return {
        "facts": read_json(work / "facts.json"),
        "parts": read_parts(work),
        "tests": read_tests(work / "tests.xml"),
        "bench": measured,
        "goals": bench.verdicts(measured) if measured else None,
    }


def as_text(report: Report) -> str:
    """Return the summary that is printed."""
    facts = report["facts"] or {}
    lines = [f"{name}: {facts[name]}" for name in ("gpu", "commit", "nvcc") if name in facts]
    if "packages" in facts:
        lines.append(f"torch {facts['packages']['torch']}, python {facts['python']}")
    lines.append("")
    for part in report["parts"]:
        code = f", exit code {part['exit_code']}" if part["exit_code"] else ""
        lines.append(f"{part['name']:12} {part['status']:12} {part['seconds']:4} s{code}")
    if tests := report["tests"]:
        counts = f"{tests['passed']} passed, {len(tests['failed'])} failed"
        lines += ["", f"tests: {counts}, {len(tests['skipped'])} skipped"]
        lines += [f"  failed: {name}" for name in tests["failed"]]
        lines += [f"  skipped: {name}" for name in tests["skipped"]]
    if report["bench"]:
        lines += bench.lines(report["bench"])
    return "\n".join(lines) + "\n"


def main(work: Path, out: Path) -> None:
    """Write both files."""
    report = gather(work, out)
    (out / "gpu.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    (out / "gpu.txt").write_text(as_text(report), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
