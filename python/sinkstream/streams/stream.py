"""A running generation, read as text, as events, or as one result; from threads or from asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from sinkstream import _core
from sinkstream.errors import EngineDead, InvalidArgument, SessionBusy, SinkstreamError
from sinkstream.observe import logs
from sinkstream.request.stream_request import StreamRequest
from sinkstream.streams import aio
from sinkstream.streams.closing import ClosesOnExit
from sinkstream.streams.events import (
    Event,
    Evicted,
    Finished,
    FinishReason,
    Prefill,
    Result,
    Started,
    Stats,
    Token,
)
from sinkstream.streams.inbox import PENDING, Inbox, Need

if TYPE_CHECKING:
    from sinkstream.streams.batch import Batch

__all__ = [
    "Event",
    "Evicted",
    "FinishReason",
    "Finished",
    "Prefill",
    "Result",
    "Started",
    "Stats",
    "Stream",
    "Token",
]

_T = TypeVar("_T")
_Reader = int | asyncio.Task[Any] | None

# What a person or a shutdown ends a program with. It may strike at any place.
_INTERRUPTS = (KeyboardInterrupt, SystemExit)


class Stream(ClosesOnExit):
    """Text as it is generated; made by `Model.stream`.

    Generation goes on beside the reader, who may fall behind: text is merged, and about 2,000
    tokens ahead of the reader generation waits. It ends with the loop that reads an unnamed stream,
    with `close()`, `cancel()`, the end of a `with` block, and Ctrl-C.

    In asyncio, `async for`, `async with`, `aevents()`, `aresult()` and `aclose()` do the same
    without keeping other tasks from running. Cancelling a task that waits for a stream, which
    `asyncio.timeout` does too, ends the generation as Ctrl-C does, and what it has produced by then
    can still be read. To look elsewhere while text is outstanding, `asyncio.wait` does not cancel.

    One thread or task at a time may read. Text and events, threads and tasks may read in turns:
    each piece is given once. A read that waits in an event loop which is then closed has let go.

    Example:
        >>> with model.stream("Once upon a time", max_tokens=100) as stream:
        ...     for text in stream:
        ...         print(text, end="", flush=True)
        >>> stream.finish_reason, stream.stats.tokens_per_s
    """

    def __init__(
        self,
        native: _core.TokenStream,
        request: StreamRequest,
        model: object,
        *,
        has_text: bool,
        take_back: Callable[[], None] | None = None,
    ) -> None:
        """Read what `native` produces for a request.

        Args:
            native: The native stream.
            request: What was submitted.
            model: The model, kept alive.
            has_text: Whether the model has a tokenizer.
            take_back: Undoes the turn of a session; None where there is no session.
        """
        self._native = native
        self._model = model
        self._take_back = take_back
        self._has_text = has_text
        self._seed = request.seed
        self._inbox = Inbox(request, native.request_id)
        # "reader": the thread, by its number, or the task that is reading.
        self._reader: dict[str, _Reader] = {}
        self._is_error_given = False

    def __repr__(self) -> str:
        state = self._inbox.finish_reason or (
            "closed" if self._inbox.is_closed else self._native.phase
        )
        return f"<sinkstream.Stream {state}, {self.stats.generated_tokens} tokens>"

    # ---- reading ---------------------------------------------------------------------------------

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> str:
        """Return the text that has come since the last call; wait if there is none.

        Raises:
            StopIteration: The stream has ended.
            InvalidArgument: The checkpoint has no tokenizer, so there is no text.
            SessionBusy: Another thread or task is reading.
            NonFiniteLogits: The model returned NaN or infinity.
            CapacityError: It waited for memory whose holders nobody reads.
            EngineDead: The generation thread has failed.
        """
        self._check_text()
        text = self._read(self._inbox.next_text)
        if text is None:
            self._raise_error_once()
            raise StopIteration
        return text

    def events(self) -> Iterator[Event]:
        """Yield what happens: Started, Prefill, Token, Evicted, and Finished at the end.

        Raises:
            SessionBusy: Another thread or task is reading.
            NonFiniteLogits: The model returned NaN or infinity; after `Finished("error")`.
            CapacityError: It waited for memory whose holders nobody reads.
            EngineDead: The generation thread has failed.
        """
        try:
            while (event := self._read(self._inbox.next_event)) is not None:
                yield event
            self._raise_error_once()
        except _INTERRUPTS:
            self.cancel()
            raise

    def result(self) -> Result:
        """Read to the end and return the whole.

        What has been read before, as text or events, is part of it.

        Raises:
            SessionBusy: Another thread or task is reading.
            NonFiniteLogits: The model returned NaN or infinity.
            CapacityError: It waited for memory whose holders nobody reads.
            EngineDead: The generation thread has failed.
        """
        self._read(self._inbox.skip)
        return self._make_result()

    # ---- reading in asyncio ----------------------------------------------------------------------

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> str:
        """Return the text that has come since the last read; let other tasks run until then.

        Raises:
            StopAsyncIteration: The stream has ended.
            OSError: The process may open no more files; an event loop needs one for its streams.
            Exception: What `next` raises.
        """
        self._check_text()
        text = await self._aread(self._inbox.next_text)
        if text is None:
            self._raise_error_once()
            raise StopAsyncIteration
        return text

    def aevents(self) -> AsyncIterator[Event]:
        """Return an asynchronous iterator of what `events` yields; it raises the same."""
        return aio.UntilNone(self._anext_event)

    async def aresult(self) -> Result:
        """Read to the end and return the whole, as `result` does; let other tasks run until then.

        Raises:
            Exception: What `result` raises.
        """
        await self._aread(self._inbox.skip)
        return self._make_result()

    # ---- ending ----------------------------------------------------------------------------------

    def cancel(self, keep: Literal["partial", "drop"] = "partial") -> None:
        """End the generation. What it has produced by then can still be read.

        Returns at once; the generation ends within one step, two on a GPU. Does nothing if it has
        ended already.

        Args:
            keep: What a session keeps of the turn: "partial", what it has come to; or "drop", which
                waits for the step in progress and makes the session what it was before the turn,
                also when that has ended.

        Raises:
            InvalidArgument: `keep` is "drop" and the stream is no session's, or the session has
                gone on, or tokens have left its window since the turn began.
            CapacityError: The turn began on pages that another session shares, and none is free.
            SessionBusy: Another thread is using the session.
            EngineDead: The model is closed, or its engine has failed.
        """
        if keep == "partial":
            self._native.cancel()
        elif keep != "drop":
            raise InvalidArgument(
                f'cancel: `keep` must be "partial" or "drop", but is {str(keep)[:40]!r}.',
                param="keep",
            )
        elif self._take_back is None:
            raise InvalidArgument(
                'cancel: `keep` must be "partial", because the stream belongs to no session, but '
                'is "drop".',
                param="keep",
            )
        else:
            self._take_back()

    def close(self) -> None:
        """End the generation and drop what has not been read. May be called more than once."""
        if not self._inbox.is_closed and self._inbox.finish_reason is None:
            logs.request_ended(self._native)
        self._inbox.close()
        self._native.close()

    async def aclose(self) -> None:
        """Do what `close` does, which waits for nothing; for `contextlib.aclosing` and the like."""
        self.close()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    # ---- looking ---------------------------------------------------------------------------------

    @property
    def finish_reason(self) -> FinishReason | None:
        """Return how the stream ended; None until its end has been read.

        One of "stop" (an end or stop token), "stop_string", "length" (`max_tokens`), "timeout"
        (`timeout_s`), "cancelled" and "error".
        """
        if self._inbox.finish_reason is None and self._inbox.is_closed:
            return "cancelled"
        return self._inbox.finish_reason

    @property
    def stats(self) -> Stats:
        """Return counts and times up to now."""
        return Stats(**self._native.stats())

    @property
    def request_id(self) -> int:
        """Return the request's number, which counts from 1 for each model."""
        return self._native.request_id

    @property
    def seed(self) -> int:
        """Return the seed in force: given, or drawn."""
        return self._seed

    # ---- inside ----------------------------------------------------------------------------------

    def _read(self, give: Callable[[], _T | Need]) -> _T:
        """Call `give` until it gives; wait for more in between, without the GIL."""
        me = threading.get_ident()
        try:
            self._claim(me)
            while (given := give()) is PENDING:
                self._receive(self._native.take())
            return given
        except _INTERRUPTS:
            # The traceback keeps this stream alive, in a notebook for long.
            self.cancel()
            raise
        finally:
            self._release(me)

    async def _aread(self, give: Callable[[], _T | Need]) -> _T:
        """Do the same, but let the event loop run in between."""
        _ = self._native.is_ready  # ForkError in a child, where asyncio knows of no loop
        me = asyncio.current_task()
        try:
            self._claim(me)
            while (given := give()) is PENDING:
                await aio.until_ready(self._native)
                self._receive(self._native.take())
            return given
        except (asyncio.CancelledError, *_INTERRUPTS):
            self.cancel()
            raise
        finally:
            self._release(me)

    async def _anext_event(self) -> Event | None:
        event = await self._aread(self._inbox.next_event)
        if event is None:
            self._raise_error_once()
        return event

    def _claim(self, me: _Reader) -> None:
        """Let one thread or task read at a time."""
        reader = self._reader.setdefault("reader", me)
        if not isinstance(reader, int) and aio.is_abandoned(reader):
            self._reader["reader"] = reader = me
        if reader != me:
            raise SessionBusy(
                "stream: one thread or task at a time may read a stream, but another one is "
                "reading."
            )

    def _release(self, me: _Reader) -> None:
        if self._reader.get("reader") == me:
            del self._reader["reader"]

    def _receive(self, batch: Batch | None) -> None:
        if batch is not None:
            self._inbox.receive(batch)
        elif not self._inbox.is_closed:  # which another thread may have done meanwhile
            self._inbox.finish(self._native.finish_reason or "cancelled")
            logs.request_ended(self._native)

    def _check_text(self) -> None:
        if not self._has_text:
            raise InvalidArgument(
                "stream: the checkpoint must have a tokenizer to stream text, but has none. Read "
                "`events()` or `result()`, which give token ids."
            )

    def _raise_error_once(self) -> None:
        if self._inbox.finish_reason == "error" and not self._is_error_given:
            self._is_error_given = True
            self._rethrow()

    def _rethrow(self) -> None:
        """Raise the error that ended the stream."""
        try:
            self._native.rethrow()
        except SinkstreamError as error:
            error.request_id = self.request_id
            if isinstance(error, EngineDead):
                logs.engine_died(self._model, error)
            raise

    def _make_result(self) -> Result:
        if self._inbox.finish_reason == "error":
            self._rethrow()
        tail = self._inbox.tail
        return Result(
            text=tail.text,
            token_ids=tail.token_ids,
            logprobs=tail.logprobs,
            finish_reason=self.finish_reason or "cancelled",
            stats=self.stats,
            dropped_characters=tail.dropped_characters,
            dropped_tokens=tail.dropped_tokens,
        )
