"""Prints the slowest tests of JUnit reports, and targets of ninja's logs, and writes all of them.

    python .ci/slowest.py build/reports/durations.txt build/reports/*.xml build/.ninja_log

A file that does not exist is left out: what should have written it has failed, and has said so.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

SHOWN = 30

Durations = dict[str, float]
"""Seconds by name."""


def of_tests(report: Path) -> Durations:
    """Read a JUnit report; tests of pytest have the file in their name."""
    found: Durations = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        file, name = case.get("classname", ""), case.get("name", "")
        found[name if file in ("", name) else f"{file}::{name}"] = float(case.get("time", 0))
    return found


def of_targets(log: Path) -> Durations:
    """Read a log of ninja; of a target that was made several times, the last time counts."""
    found: Durations = {}
    for line in log.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            start_ms, end_ms, _, target, *_ = line.split("\t")
            found[target] = (int(end_ms) - int(start_ms)) / 1000
    return found


def table(title: str, durations: Durations) -> list[str]:
    """Return a title with the sum, and a line for each name, the slowest first."""
    total = sum(durations.values())
    by_time = sorted(durations.items(), key=lambda item: -item[1])
    lines = [f"{seconds:8.2f} s  {name}" for name, seconds in by_time]
    return [f"{title}: {len(durations):,}, {total:,.0f} s in all", *lines]


def main(durations: Path, files: list[Path]) -> None:
    """Print the beginnings of the tables, and write the tables."""
    every: list[str] = []
    for file in files:
        if file.exists():
            read = of_targets if file.name == ".ninja_log" else of_tests
            lines = table(str(file), read(file))
            every += [*lines, ""]
            print("\n".join([*lines[: SHOWN + 1], ""]))
    durations.parent.mkdir(parents=True, exist_ok=True)
    durations.write_text("\n".join(every), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
