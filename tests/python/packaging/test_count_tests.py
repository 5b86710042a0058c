"""The last line of a CI run: a count, and an exit code that is 0 only if all tests passed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / ".ci" / "count_tests.py"

GOOD = '<testsuite><testcase name="a"/><testcase name="b"><skipped/></testcase></testsuite>'
BAD = '<testsuites><testsuite><testcase name="c"><failure/></testcase></testsuite></testsuites>'
ERROR = '<testsuite><testcase name="d"><error/></testcase></testsuite>'


def count(folder: Path, *reports: str) -> tuple[int, str]:
    paths = []
    for i, report in enumerate(reports):
        path = folder / f"{i}.xml"
        path.write_text(report, encoding="utf-8")
        paths.append(str(path))
    done = subprocess.run(
        [sys.executable, SCRIPT, *paths], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


def test_reports_are_added_up(tmp_path: Path) -> None:
    assert count(tmp_path, GOOD, GOOD) == (0, "2 passed, 0 failed, 2 skipped\n")


def test_failures_and_errors_fail_the_run(tmp_path: Path) -> None:
    assert count(tmp_path, GOOD, BAD, ERROR) == (1, "1 passed, 2 failed, 1 skipped\n")


def test_a_run_without_tests_fails(tmp_path: Path) -> None:
    assert count(tmp_path, "<testsuite/>") == (1, "0 passed, 0 failed, 0 skipped\n")


def test_a_report_that_was_cut_off_fails_the_run(tmp_path: Path) -> None:
    assert count(tmp_path, GOOD, GOOD[:40]) == (1, "1 passed, 1 failed, 1 skipped\n")
