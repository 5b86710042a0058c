"""A tiny model shared by the tests of a file; its engine is idle before each test."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

import sinkstream
from tests.python.two_streams import folder, model

__all__ = ["folder", "model", "wait_until", "wait_until_idle"]


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds; fail after ten seconds."""
    deadline = time.monotonic() + 10
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail("it does not come to pass")
        time.sleep(0.002)


def wait_until_idle(model: sinkstream.Model) -> None:
    """Wait until no request is waiting or running."""
    wait_until(lambda: model.stats()["waiting"] == model.stats()["running"] == 0)
