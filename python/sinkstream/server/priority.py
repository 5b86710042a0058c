"""Lets the event loop run before the engine when all processors are busy."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")

NICE = 5
"""Of the engine's threads, above that of the process. Their work takes long and is done either way;
the loop's is short, and clients wait for it."""


def call_nicely(call: Callable[[], _T]) -> _T:
    """Return what a call returns; threads that it starts have a lower priority, on Linux.

    Only there does a thread have a priority of its own, which the threads that it starts inherit.

    Raises:
        BaseException: Any error that `call` raises.
    """
    if sys.platform != "linux":
        return call()
    future: Future[_T] = Future()

    def run() -> None:
        os.nice(NICE)
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="sinkstream-load", daemon=True).start()
    return future.result()
