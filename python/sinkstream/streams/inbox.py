"""Holds what a reader has received from a stream but not yet returned. Never waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from sinkstream.streams.events import (
    Event,
    Evicted,
    Finished,
    FinishReason,
    Prefill,
    PromptToken,
    Started,
    Token,
    text_of,
)
from sinkstream.streams.kept_tokens import ScoredPrompt, Tail
from sinkstream.text.marked_text import joined
from sinkstream.text.thought_reader import ThoughtReader

if TYPE_CHECKING:
    from sinkstream.request.stream_request import StreamRequest
    from sinkstream.streams.batch import Batch
    from sinkstream.text.marked_text import Kind, Parts


class ReadBatch(NamedTuple):
    """What is known about the tokens of a batch."""

    tokens: list[tuple[Kind, Parts]]
    """For each token, what it belongs to, and the parts that it completes."""
    rest: Parts
    """What follows the last token."""

    def joined(self, kind: Kind) -> str:
        """Return everything of one kind that is known."""
        return "".join(joined(parts, kind) for _, parts in self.tokens) + joined(self.rest, kind)


def read_batch(reader: ThoughtReader, batch: Batch) -> ReadBatch:
    """Read the next batch of a stream."""
    tokens = []
    begin = 0
    for token_id, length in zip(batch.ids, batch.lengths, strict=True):
        tokens.append(reader.token(token_id, batch.text[begin : begin + length]))
        begin += length
    return ReadBatch(tokens, reader.push_text(batch.text[begin:]))


# A reply with `max_tokens` up to the first number is kept completely. Of other replies, only this
# many of the last tokens and characters are kept.
_WHOLE_TOKENS = 65536
_TAIL_TOKENS = 4096
_TAIL_CHARACTERS = 32768
_TEXT: Kind = "text"


class Pending(Enum):
    """The type of `PENDING`."""

    PENDING = "pending"


PENDING: Final = Pending.PENDING
"""Nothing to return before the next batch, or the end, arrives."""

Need = Literal[Pending.PENDING]


class Inbox:
    """Converts batches into text or events, as requested; each is returned once.

    For one reader at a time. Another thread may call `close` meanwhile, but nothing else.

    Attributes:
        tail: The end of all text received, returned or not.
        thoughts: The same for thoughts.
        has_text: Whether there has been text other than white space.
        prompt: All tokens of the prompt that have been scored.
        finish_reason: How the stream ended; None until its end has been received.
        is_closed: Whether reading has been closed; then nothing more is returned.
    """

    def __init__(self, request: StreamRequest, request_id: int) -> None:
        """Expect the reply to `request`."""
        self._started = Started(len(request.prompt), request.seed, request.sampling, request_id)
        is_whole = request.max_tokens is not None and request.max_tokens <= _WHOLE_TOKENS
        self.tail = Tail(None, None) if is_whole else Tail(_TAIL_TOKENS, _TAIL_CHARACTERS)
        self.thoughts = Tail(0, None if is_whole else _TAIL_CHARACTERS)
        self.has_text = False
        self.prompt = ScoredPrompt()
        self.finish_reason: FinishReason | None = None
        self.is_closed = False
        self._batch: Batch | None = None  # received; neither returned nor converted into events
        self._read: ReadBatch | None = None  # of that batch, if it is a reasoning model's
        self._unmade: Iterator[Event] = iter(())  # the rest of a batch that is being converted
        self._events: deque[Event] = deque()
        self._rest: Parts = []  # after the last event: belongs to no token, or to the next one

    def keep_no_tail(self) -> None:
        """Keep nothing in `tail` and `thoughts`. To be called before the first batch."""
        self.tail = self.thoughts = Tail(0, 0)

    @property
    def prompt_tokens(self) -> int:
        """Return the number of tokens in the request's prompt."""
        return self._started.prompt_tokens

    def receive(self, batch: Batch, read: ReadBatch | None = None) -> None:
        """Add a batch. The previous one must have been returned or converted into events.

        Args:
            batch: The batch as it was taken.
            read: What is known about it, if thoughts are separated from text.
        """
        text = batch.text
        if read is not None:
            text = read.joined("text")
            self.thoughts.add(read.joined("thought"), (), ())
        self.has_text = self.has_text or bool(text.strip())
        self.tail.add(text, batch.ids, batch.logprobs, batch.alternatives)
        self.prompt.add(batch.prompt)
        self._batch, self._read = batch, read

    def finish(self, reason: FinishReason, held: Sequence[tuple[Kind, str]] = ()) -> None:
        """Record the end, after all batches, and what was held back until then."""
        self.finish_reason = reason
        text = joined(held, "text")
        self.has_text = self.has_text or bool(text.strip())
        self.tail.add(text, (), ())
        self.thoughts.add(joined(held, "thought"), (), ())
        rest = [*self._rest, *held]
        self._events.append(Finished(reason, joined(rest, "text"), joined(rest, "thought")))
        self._rest = []

    def close(self) -> None:
        """Drop what has not been returned."""
        self.is_closed = True
        # Replaced, not cleared: a reader in another thread may be about to pop an event.
        self._events = deque()

    def next_text(self) -> str | Need | None:
        """Return all available text; None at the end."""
        if self.is_closed:
            return None
        self._events += self._unmade
        text = "".join(map(text_of, self._events)) + joined(self._rest, "text")
        self._events.clear()
        self._rest = []
        if self._batch is not None:
            text += self._batch.text if self._read is None else self._read.joined("text")
            self._batch = None
        return text or self._nothing_left()

    def next_event(self) -> Event | Need | None:
        """Return one event; None at the end."""
        self._make()
        events = self._events
        if self.is_closed or not events:
            return self._nothing_left()
        return events.popleft()

    def next_events(self, most: int | None = None) -> list[Event] | Need:
        """Return all available events but those of `prompt`, or `most` of them; none at the end.

        The others are made when they are asked for: an event takes ten times as much memory as what
        a batch has of it.
        """
        if self._batch is not None:
            self._batch = self._batch._replace(prompt=())
        self._make(most)
        if self.is_closed:
            return []
        count = len(self._events) if most is None else min(most, len(self._events))
        events = [self._events.popleft() for _ in range(count)]
        return events or ([] if self.finish_reason is not None else PENDING)

    @property
    def has_events(self) -> bool:
        """Return whether `next_events` has left some."""
        return bool(self._events)

    def skip(self) -> Need | None:
        """Discard everything available; return None at the end."""
        self._batch, self._unmade = None, iter(())
        self._rest = []
        self._events.clear()
        return self._nothing_left()

    def _nothing_left(self) -> Need | None:
        return None if self.is_closed or self.finish_reason is not None else PENDING

    def _make(self, most: int | None = None) -> None:
        """Convert the batch into events, one more than `most` if it has more."""
        if self._batch is not None:
            self._unmade, self._batch = self._events_of(self._batch), None
        missing = None if most is None else max(0, most + 1 - len(self._events))
        self._events += islice(self._unmade, missing)

    def _events_of(self, batch: Batch) -> Iterator[Event]:
        text, ids, logprobs, lengths, alternatives, marks, prompt = batch
        next_mark = 0
        if prompt and marks and marks[0][0] == "started":
            yield self._event_of(*marks[0][::2])
            next_mark = 1
        yield from (PromptToken(*scored) for scored in prompt)
        begin = 0
        for i in range(len(ids) + 1):
            while next_mark < len(marks):
                kind, tokens_before, count = marks[next_mark]
                if tokens_before != i:
                    break
                yield self._event_of(kind, count)
                next_mark += 1
            if i < len(ids):
                end = begin + lengths[i]
                top = alternatives[i] if alternatives else ()
                shown, kind = text[begin:end], _TEXT
                if self._read is not None:
                    shown, kind = self._part_of(*self._read.tokens[i])
                yield Token(shown, ids[i], logprobs[i], top, kind)
                begin = end
        if self._read is not None:
            self._rest += self._read.rest
        elif begin < len(text):
            self._rest = [("text", text[begin:])]

    def _part_of(self, kind: Kind, parts: Parts) -> tuple[str, Kind]:
        """Return what a token's event shows; text of another kind waits for the next event."""
        parts = [*self._rest, *parts]
        kind = parts[0][0] if parts else kind
        count = next((i for i, part in enumerate(parts) if part[0] != kind), len(parts))
        self._rest = parts[count:]
        return joined(parts[:count], kind), kind

    def _event_of(self, kind: str, count: int) -> Event:
        if kind == "started":  # a session's turn begins with the pending token
            self._started = replace(self._started, prompt_tokens=count)
            return self._started
        if kind == "prefill":
            return Prefill(count, self._started.prompt_tokens)
        return Evicted(count)
