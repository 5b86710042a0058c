"""A plugin of pytest that writes down how each test ended: "passed", "failed" or "crashed".

A test has failed only where an assertion did not hold, or an error that should be raised was not: a
mistake that makes a test stumble over something else was not noticed by what the test promises.
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
    """Note the worst of a test's setup, call and teardown."""
    report = yield
    if call.excinfo is not None and not report.skipped:
        noticed = call.when == "call" and issubclass(call.excinfo.type, _NOTICED)
        _outcomes[item.nodeid] = "failed" if noticed else "crashed"
    elif call.when == "call" and report.passed:
        _outcomes.setdefault(item.nodeid, "passed")
    return report


def pytest_sessionfinish() -> None:
    """Write the file; there is none if pytest comes to no end."""
    Path(os.environ[FILE_VARIABLE]).write_text(json.dumps(_outcomes), encoding="utf-8")
