"""Wait for what another thread does soon.

The limits only detect hangs: an engine is idle within milliseconds on an unloaded machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

import sinkstream


def wait_until(condition: Callable[[], bool], what: str = "it does not come to pass") -> None:
    """Wait until `condition` holds; fail with `what` after twenty seconds."""
    deadline = time.monotonic() + 20
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(what)
        time.sleep(0.001)


def is_idle(model: sinkstream.Model) -> bool:
    """Tell whether no request waits or runs and every page of the cache is free."""
    stats = model.stats()
    return stats["running"] == stats["waiting"] == 0 and stats["free_pages"] == stats["pages"]


def wait_until_idle(model: sinkstream.Model) -> None:
    """Wait until `model` is idle: what ended returns its pages in the engine's thread."""
    wait_until(lambda: is_idle(model), "the engine does not become idle")
