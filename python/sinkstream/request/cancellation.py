"""Lets the caller of long work end it early: the work asks between its parts.

A call that encodes a long conversation has no place to wait, and so no other place to end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class _Thread(threading.local):
    check: Callable[[], object] | None = None


_thread = _Thread()


@contextmanager
def checking(check: Callable[[], object]) -> Iterator[None]:
    """Call `check` between the parts of what this thread does in the block; it may raise."""
    before, _thread.check = _thread.check, check
    try:
        yield
    finally:
        _thread.check = before


def check_wanted() -> None:
    """Raise what the check of this thread raises, if it has one."""
    if _thread.check is not None:
        _thread.check()
