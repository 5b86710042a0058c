"""Lets one thread or task at a time read a stream, and wait until there is something to read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from sinkstream.errors import SessionBusy
from sinkstream.streams.inbox import PENDING, Need

if TYPE_CHECKING:
    import asyncio

    from sinkstream import _core
    from sinkstream.streams.batch import Batch

INTERRUPTS = (KeyboardInterrupt, SystemExit)
"""Raised by Ctrl-C and by a shutdown, possibly at any point."""

_T = TypeVar("_T")
_Reader: TypeAlias = "int | asyncio.Task[Any] | None"
_Receive: TypeAlias = "Callable[[Batch | None], None]"


class OneReader:
    """Reads a native stream for one thread or task, and refuses all others meanwhile.

    What interrupts a read ends the generation: Ctrl-C, or the cancellation of a task. An error's
    traceback would otherwise keep the stream alive, in a notebook for a long time.
    """

    def __init__(self, native: _core.TokenStream) -> None:
        """Read what `native` produces."""
        self._native = native
        # Key "reader": the id of the thread, or the task, that is reading.
        self._reader: dict[str, _Reader] = {}

    @property
    def is_taken(self) -> bool:
        """Return whether a thread or a task is reading."""
        return bool(self._reader)

    def read(self, give: Callable[[], _T | Need], receive: _Receive) -> _T:
        """Call `give` until it returns a value; in between, wait for a batch without the GIL.

        `receive` gets each batch, and None at the end.
        """
        me = threading.get_ident()
        try:
            self.claim(me)
            while (given := give()) is PENDING:
                receive(self._native.take())
            return given
        except INTERRUPTS:
            self._native.cancel()
            raise
        finally:
            self.release(me)

    async def aread(self, give: Callable[[], _T | Need], receive: _Receive) -> _T:
        """Do the same as `read`, but let the event loop run in between."""
        import asyncio  # 2 MB that a reader in a thread does without

        from sinkstream.streams import aio

        _ = self._native.is_ready  # raises ForkError in a child, which has no running loop
        me = asyncio.current_task()
        try:
            self.claim(me)
            while (given := give()) is PENDING:
                await aio.until_ready(self._native)
                receive(self._native.take())
            return given
        except (asyncio.CancelledError, *INTERRUPTS):
            self._native.cancel()
            raise
        finally:
            self.release(me)
            del me  # a cancelled task holds its error, which holds this frame

    def claim(self, me: _Reader) -> None:
        """Make `me` the reader, or refuse if there is another one."""
        reader = self._reader.setdefault("reader", me)
        if not isinstance(reader, int) and _is_abandoned(reader):
            self._reader["reader"] = reader = me
        if reader != me:
            raise SessionBusy(
                "stream: only one thread or task can read a stream at a time, but another is "
                "reading this stream."
            )

    def release(self, me: _Reader) -> None:
        """Let others read, unless another one is reading."""
        if self._reader.get("reader") == me:
            del self._reader["reader"]


def _is_abandoned(task: asyncio.Task[Any] | None) -> bool:
    """Return whether the task can never continue, because its loop was closed."""
    return task is not None and task.get_loop().is_closed()
