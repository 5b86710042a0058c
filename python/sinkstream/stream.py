"""A running generation, read as text, as events, or as one result."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from sinkstream import _core, logs
from sinkstream.errors import EngineDead, InvalidArgument, SessionBusy, SinkstreamError
from sinkstream.events import (
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
from sinkstream.params import StreamRequest
from sinkstream.tail import Tail

if TYPE_CHECKING:
    from types import TracebackType

    from tokenizers import Tokenizer

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

# What a person or a shutdown ends a program with. It may strike at any place.
_INTERRUPTS = (KeyboardInterrupt, SystemExit)

# A reply of known length is kept whole up to the first number of tokens; of an endless one, the
# last tokens and characters.
_WHOLE_TOKENS = 65536
_TAIL_TOKENS = 4096
_TAIL_CHARACTERS = 32768


class Owner(Protocol):
    """What a stream needs of its model, which it keeps alive."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer; without one there is no text."""
        ...


class Stream:
    """Text as it is generated; made by `Model.stream`.

    Generation goes on beside the reader, who may fall behind: text is merged, and about 2,000
    tokens ahead of the reader generation waits. It ends with the loop that reads an unnamed stream,
    with `close()`, `cancel()`, the end of a `with` block, and Ctrl-C.

    One thread at a time may read. Text and events may be read in turns: each is given once.

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
        owner: Owner,
        *,
        take_back: Callable[[], None] | None = None,
    ) -> None:
        """Read what `native` produces for `request` of the model `owner`.

        `take_back` undoes the turn of a session; None where there is no session.
        """
        self._native = native
        self._owner = owner
        self._take_back = take_back
        self._has_text = owner.tokenizer is not None
        self._prompt_tokens = len(request.prompt)
        self._sampling = request.sampling
        self._seed = request.seed
        is_whole = request.max_tokens is not None and request.max_tokens <= _WHOLE_TOKENS
        self._tail = Tail(None, None) if is_whole else Tail(_TAIL_TOKENS, _TAIL_CHARACTERS)
        self._reader: dict[str, int] = {}  # "thread": the one that is reading
        self._events: deque[Event] = deque()  # taken from the native side, not yet given
        self._rest = ""  # text that belongs to no token: what was held back when the stream ended
        self._finish_reason: FinishReason | None = None
        self._is_error_given = False
        self._is_closed = False

    def __repr__(self) -> str:
        state = self._finish_reason or ("closed" if self._is_closed else self._native.phase)
        return f"<sinkstream.Stream {state}, {self.stats.generated_tokens} tokens>"

    # ---- reading ---------------------------------------------------------------------------------

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> str:
        """Return the text that has come since the last call; wait if there is none.

        Raises:
            StopIteration: The stream has ended.
            InvalidArgument: The checkpoint has no tokenizer, so there is no text.
            SessionBusy: Another thread is reading.
            NonFiniteLogits: The model returned NaN or infinity.
            CapacityError: It waited for memory whose holders nobody reads.
            EngineDead: The generation thread has failed.
        """
        if not self._has_text:
            raise InvalidArgument(
                "stream: the checkpoint must have a tokenizer to stream text, but has none. Read "
                "`events()` or `result()`, which give token ids."
            )
        text = self._read(self._next_text)
        if text is None:
            raise StopIteration
        return text

    def events(self) -> Iterator[Event]:
        """Yield what happens: Started, Prefill, Token, Evicted, and Finished at the end.

        Raises:
            SessionBusy: Another thread is reading.
            NonFiniteLogits: The model returned NaN or infinity; after `Finished("error")`.
            CapacityError: It waited for memory whose holders nobody reads.
            EngineDead: The generation thread has failed.
        """
        try:
            while (event := self._read(self._next_event)) is not None:
                yield event
        except _INTERRUPTS:
            self.cancel()
            raise

    def result(self) -> Result:
        """Read to the end and return the whole.

        What has been read before, as text or events, is part of it.

        Raises:
            SessionBusy: Another thread is reading.
            NonFiniteLogits: The model returned NaN or infinity.
            CapacityError: It waited for memory whose holders nobody reads.
            EngineDead: The generation thread has failed.
        """
        self._read(self._read_to_end)
        return Result(
            text=self._tail.text,
            token_ids=self._tail.token_ids,
            logprobs=self._tail.logprobs,
            finish_reason=self.finish_reason or "cancelled",
            stats=self.stats,
            dropped_characters=self._tail.dropped_characters,
            dropped_tokens=self._tail.dropped_tokens,
        )

    # ---- ending ----------------------------------------------------------------------------------

    def cancel(self, keep: Literal["partial", "drop"] = "partial") -> None:
        """End the generation. What it has produced by then can still be read.

        Returns at once; the generation ends within one step. Does nothing if it has ended already.

        Args:
            keep: What a session keeps of the turn: "partial", what it has come to; or "drop", which
                waits for the step in progress and makes the session what it was before the turn,
                also when that has ended.

        Raises:
            InvalidArgument: `keep` is "drop" and the stream is no session's, or the session has
                gone on, or tokens have left its window since the turn began.
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
        if not self._is_closed and self._finish_reason is None:
            logs.request_ended(self._native)
        self._is_closed = True
        self._native.close()
        # Not emptied: a reader in another thread may be about to take one.
        self._events = deque()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- looking ---------------------------------------------------------------------------------

    @property
    def finish_reason(self) -> FinishReason | None:
        """Return how the stream ended; None until its end has been read.

        One of "stop" (an end or stop token), "stop_string", "length" (`max_tokens`), "cancelled"
        and "error".
        """
        if self._finish_reason is None and self._is_closed:
            return "cancelled"
        return self._finish_reason

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

    def _read(self, step: Callable[[], _T]) -> _T:
        """Call `step` for one thread at a time; end the generation where it is interrupted."""
        me = threading.get_ident()
        try:
            if self._reader.setdefault("thread", me) != me:
                raise SessionBusy(
                    "stream: one thread at a time may read a stream, but another one is reading."
                )
            return step()
        except _INTERRUPTS:
            # The traceback keeps this stream alive, in a notebook for long.
            self.cancel()
            raise
        finally:
            if self._reader.get("thread") == me:
                del self._reader["thread"]

    def _next_text(self) -> str | None:
        text = "" if self._is_closed else "".join(_text_of(event) for event in self._events)
        self._events.clear()
        while not text:
            batch = self._take()
            if batch is None:
                self._raise_error_once()
                return None
            text = batch[0]
        return text

    def _next_event(self) -> Event | None:
        while not self._is_closed:  # which another thread may do at any moment
            events = self._events
            if events:
                return events.popleft()
            if self._finish_reason is not None:
                break
            batch = self._take()
            if batch is not None:
                self._add_events(batch)
            elif self._finish_reason is not None:
                self._events.append(Finished(self._finish_reason, self._rest))
        self._raise_error_once()
        return None

    def _read_to_end(self) -> None:
        self._events.clear()
        while self._take() is not None:
            pass
        if self._finish_reason == "error":
            self._rethrow()

    def _take(self) -> _core.Batch | None:
        """Return the next batch, None at the end."""
        if self._is_closed or self._finish_reason is not None:
            return None
        batch = self._native.take()
        if batch is not None:
            self._tail.add(batch[0], batch[1], batch[2])
        elif not self._is_closed:  # which another thread may have done meanwhile
            self._finish_reason = self._native.finish_reason
            logs.request_ended(self._native)
        return batch

    def _raise_error_once(self) -> None:
        if self._finish_reason == "error" and not self._is_error_given:
            self._is_error_given = True
            self._rethrow()

    def _rethrow(self) -> None:
        """Raise the error that ended the stream."""
        try:
            self._native.rethrow()
        except SinkstreamError as error:
            error.request_id = self.request_id
            if isinstance(error, EngineDead):
                logs.engine_died(self._owner, error)
            raise

    def _add_events(self, batch: _core.Batch) -> None:
        text, ids, logprobs, lengths, alternatives, marks = batch
        place = 0
        begin = 0
        for i in range(len(ids) + 1):
            while place < len(marks) and marks[place][1] == i:
                self._events.append(self._event_of(*marks[place]))
                place += 1
            if i < len(ids):
                end = begin + lengths[i]
                top = alternatives[i] if alternatives else ()
                self._events.append(Token(text[begin:end], ids[i], logprobs[i], top))
                begin = end
        self._rest = text[begin:]

    def _event_of(self, kind: str, tokens_before: int, count: int) -> Event:
        if kind == "started":
            return Started(self._prompt_tokens, self._seed, self._sampling, self.request_id)
        if kind == "prefill":
            return Prefill(count, self._prompt_tokens)
        return Evicted(count)


def _text_of(event: Event) -> str:
    return event.text if isinstance(event, Token | Finished) else ""
