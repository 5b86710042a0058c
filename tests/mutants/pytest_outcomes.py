"""A pytest plugin that records how each test ended: "passed", "failed" or "crashed".

A test has failed only if an assertion did not hold, or an expected error was not raised. Any other
error is a crash: the mistake was not noticed by what the test asserts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest

FILE_VARIABLE = "SINKSTREAM_MUTANTS_OUTCOMES"
_NOTICED = (AssertionError, pytest.fail.Exception)
_outcomes: dict[str, str] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record the worst of a test's setup, call and teardown."""
    report = yield
    if call.excinfo is not None and not report.skipped:
        noticed = call.when == "call" and issubclass(call.excinfo.type, _NOTICED)
        _outcomes[item.nodeid] = "failed" if noticed else "crashed"
    elif call.when == "call" and report.passed:
        _outcomes.setdefault(item.nodeid, "passed")
    return report


def pytest_sessionfinish() -> None:
    """Write the file; it is missing if pytest does not finish."""
    Path(os.environ[FILE_VARIABLE]).write_text(json.dumps(_outcomes), encoding="utf-8")
