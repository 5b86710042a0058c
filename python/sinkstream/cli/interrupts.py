"""Ctrl-C on the command line: KeyboardInterrupt while a command runs, otherwise an immediate exit.

During imports an exception could be printed or swallowed, and there is nothing to clean up.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130  # what shells report after Ctrl-C

_raises = False


def take_over() -> None:
    """Handle Ctrl-C for the whole process, unless its parent made it ignore the signal."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _handle)


@contextmanager
def raising(raises: bool = True) -> Iterator[None]:
    """Within the block, raise KeyboardInterrupt, or stop at once if `raises` is False."""
    global _raises
    former, _raises = _raises, raises
    try:
        yield
    finally:
        _raises = former


def _handle(number: int, frame: FrameType | None) -> None:
    if _raises:
        signal.default_int_handler(number, frame)
    if os.isatty(2):
        os.write(2, b"\n")  # the shell's prompt gets a line of its own
    os._exit(INTERRUPTED)
