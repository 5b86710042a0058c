"""Ctrl-C and SIGTERM on the command line.

While a command runs, Ctrl-C raises KeyboardInterrupt, and SIGTERM raises SystemExit, which no
command treats as the end of a reply. At any other time both end the process at once: during imports
an exception could be printed or swallowed, and there is nothing to clean up.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130  # what shells report after Ctrl-C
TERMINATED = 143  # and after SIGTERM

_raises = False


def take_over() -> None:
    """Handle both for the whole process, except a signal that its parent made it ignore."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)


@contextmanager
def raising(raises: bool = True) -> Iterator[None]:
    """Within the block, raise an exception, or stop at once if `raises` is False."""
    global _raises
    former, _raises = _raises, raises
    try:
        yield
    finally:
        _raises = former


def _terminate(number: int, frame: FrameType | None) -> None:
    if _raises:
        raise SystemExit(TERMINATED)
    os._exit(TERMINATED)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _raises:
        signal.default_int_handler(number, frame)
    if os.isatty(2):
        os.write(2, b"\n")  # the shell's prompt gets a line of its own
    os._exit(INTERRUPTED)
