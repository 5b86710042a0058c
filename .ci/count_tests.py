"""Adds up JUnit reports, prints "N passed, N failed, N skipped", and exits with 1 after a failure.

A missing report counts as one failure, because its tests did not run.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path


def count(report: Path) -> Counter[str]:
    """Count the outcomes of one report's test cases."""
    try:
        root = ElementTree.parse(report).getroot()
    except (OSError, ElementTree.ParseError) as error:
        print(f"count_tests: {report} cannot be read: {error}", file=sys.stderr)
        return Counter(failed=1)
    return Counter(outcome(case) for case in root.iter("testcase"))


def outcome(case: ElementTree.Element) -> str:
    """Return how one test case ended."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "passed" if case.find("skipped") is None else "skipped"


def main(reports: list[str]) -> int:
    """Print the sum over all reports."""
    total: Counter[str] = Counter()
    for report in reports:
        total += count(Path(report))
    print(", ".join(f"{total[name]} {name}" for name in ("passed", "failed", "skipped")))
    return 0 if total["passed"] and not total["failed"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
