"""A pytest plugin that writes how each test ended: "passed", "failed" or "skipped"."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest

FILE_VARIABLE = "SINKSTREAM_CONFORMANCE_OUTCOMES"
_outcomes: dict[str, str] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record the worst of a test's setup, call and teardown."""
    report = yield
    if report.failed:
        _outcomes[item.nodeid] = "failed"
    elif report.skipped or report.when == "call":
        _outcomes.setdefault(item.nodeid, report.outcome)
    return report


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Record a file that cannot be imported."""
    if report.failed:
        _outcomes[report.nodeid] = "failed"


def pytest_sessionfinish() -> None:
    """Write the file; it is missing if pytest does not finish."""
    Path(os.environ[FILE_VARIABLE]).write_text(json.dumps(_outcomes), encoding="utf-8")
