"""What the engine's loader starts runs after the event loop."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from sinkstream.server.priority import NICE, call_nicely

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads share one priority")


def priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


def test_only_the_call_and_the_threads_that_it_starts_have_a_lower_priority() -> None:
    before, seen = priority(), []

    def call() -> int:
        thread = threading.Thread(target=lambda: seen.append(priority()))
        thread.start()
        thread.join()
        return priority()

    assert [call_nicely(call), *seen] == [before + NICE] * 2
    assert priority() == before


def test_an_error_is_passed_on() -> None:
    def call() -> None:
        raise KeyError("why")

    with pytest.raises(KeyError, match="why"):
        call_nicely(call)
