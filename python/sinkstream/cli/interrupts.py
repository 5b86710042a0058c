"""Ctrl-C and SIGTERM on the command line.

While a command runs, Ctrl-C raises KeyboardInterrupt, and SIGTERM raises SystemExit, which no
command treats as the end of a reply. At any other time both end the process at once: during imports
an exception could be printed or swallowed, and there is nothing to clean up. In an event loop, both
cancel the task that the loop runs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

INTERRUPTED = 130  # what shells report after Ctrl-C
TERMINATED = 143  # and after SIGTERM

_raises = False
_receive: Callable[[BaseException], None] | None = None
"""Takes the next exception instead of its being raised."""


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


def run_async(main: Coroutine[Any, Any, None]) -> None:
    """Run `main` in an event loop. A signal cancels it, and then raises its exception.

    Raised in the loop's own code, the exception would lose a callback that the loop has taken and
    not called yet, and the callback's task could no longer even be cancelled. Only a second signal
    takes that risk.
    """
    import asyncio  # not needed by most commands

    global _receive
    errors: list[BaseException] = []
    task: asyncio.Task[None] | None = None

    async def cancellable() -> None:
        nonlocal task
        task = asyncio.current_task()
        if not errors:
            await main

    def receive(error: BaseException) -> None:
        errors.append(error)
        if task is not None:
            task.cancel()
            task.get_loop().call_soon_threadsafe(lambda: None)  # it may be waiting for a file

    _receive = receive
    try:
        asyncio.run(cancellable())
    except asyncio.CancelledError:
        if not errors:
            raise
    finally:
        _receive = None
        main.close()
    if errors:
        raise errors[0]


def _raise(error: BaseException) -> None:
    global _receive
    if _receive is None:
        raise error
    receive, _receive = _receive, None
    receive(error)


def _terminate(number: int, frame: FrameType | None) -> None:
    if _raises:
        _raise(SystemExit(TERMINATED))
        return
    os._exit(TERMINATED)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _raises:
        _raise(KeyboardInterrupt())
        return
    if os.isatty(2):
        os.write(2, b"\n")  # the shell's prompt gets a line of its own
    os._exit(INTERRUPTED)
