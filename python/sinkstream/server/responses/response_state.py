"""One response: what was requested, how far the reply has come, and how it ended.

All events and the `response` object are made from it, at any time and for any number of clients.
Its text is bounded by `max_output_tokens`; no event is kept.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sinkstream.server.reply_pieces import CallDelta
from sinkstream.server.request_bodies import SMALL_BYTES
from sinkstream.streams.events import Token
from sinkstream.text.messages import ToolCall

TOKEN_BYTES = 128
"""About as long is a log-probability as JSON."""


class Deltas:
    """Growing text. Holds its UTF-8 once, and two numbers for each piece."""

    def __init__(self) -> None:
        self.encoded = bytearray()
        """All of it."""
        self._ends: array[int] = array("I")
        self._generated: array[int] = array("I")

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> str:
        """Return a piece, counted from 0."""
        begin = self._ends[number - 1] if number else 0
        return self.encoded[begin : self._ends[number]].decode()

    @property
    def text(self) -> str:
        """Return the whole text."""
        return self.encoded.decode()

    @property
    def sizes(self) -> list[int]:
        """Return the bytes of each piece."""
        return [end - begin for begin, end in zip([0, *self._ends], self._ends, strict=False)]

    @property
    def generated(self) -> Sequence[int]:
        """Return how many tokens had been generated at the end of each piece."""
        return self._generated

    def add(self, text: str, generated: int = 0) -> None:
        """Add a piece, after which `generated` tokens have been generated."""
        self.encoded += text.encode()
        self._ends.append(len(self.encoded))
        self._generated.append(generated)

    def add_all(self, text: str, sizes: Sequence[int], generated: Sequence[int] = ()) -> None:
        """Add text in pieces of the given sizes; their token counts may be unknown."""
        encoded, begin = text.encode(), 0
        for index, size in enumerate(sizes):
            piece = encoded[begin : begin + size].decode()
            self.add(piece, generated[index] if generated else 0)
            begin += size


@dataclass(slots=True)
class Outcome:
    """How a response ended."""

    status: str
    """"completed", "incomplete", "failed" or "cancelled"."""
    completed_at: int | None = None
    """None unless it is completed."""
    incomplete: str | None = None
    """The reason, under OpenAI's name."""
    error: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    own: dict[str, Any] | None = None
    """Fields that only this server has."""


@dataclass(slots=True)
class CallState:
    """A tool call, with its arguments in the pieces that are its deltas."""

    call: ToolCall
    deltas: list[str] = field(default_factory=list)

    def add(self, arguments: str) -> None:
        """Add a delta."""
        self.call.arguments += arguments
        self.deltas.append(arguments)


@dataclass(slots=True)
class ResponseState:
    """The state of one response: a thought, then text, then calls, any of which may be missing."""

    request_fields: dict[str, Any]
    """The fields of the response that repeat the request, including its id."""
    tenant: str
    fields_bytes: int = 0
    """How long they are as JSON."""
    is_begun: bool = False
    """Whether the reply has begun: until then, it waits for memory."""
    has_parts: bool = False
    """Whether the reply may have a thought or calls; known once it has begun."""
    thought: Deltas = field(default_factory=Deltas)
    text: Deltas = field(default_factory=Deltas)
    tokens: list[list[Token]] | None = None
    """The tokens of each text delta; None unless log-probabilities are requested."""
    calls: list[CallState] = field(default_factory=list)
    encodes_thought: bool = False
    """Whether the thought's item has `encrypted_content`."""
    tells_usage: bool = False
    """Whether each delta says how many tokens there are so far."""
    ignored: Sequence[str] = ()
    """Fields of the request that are unknown."""
    input_tokens: int = 0
    """The tokens of the conversation before the reply; known once the reply has begun."""
    outcome: Outcome | None = None
    """None while it is in progress."""

    @property
    def size(self) -> int:
        """Return about how many bytes it has as JSON."""
        tokens = 0 if self.tokens is None else TOKEN_BYTES * len(self.text)
        return self.fields_bytes + len(self.text.encoded) + len(self.thought.encoded) + tokens

    @property
    def is_long(self) -> bool:
        """Return whether its object and some of its events belong on the pool."""
        return self.size > SMALL_BYTES

    @property
    def id(self) -> str:
        """Return the response's id."""
        return str(self.request_fields["id"])

    @property
    def is_background(self) -> bool:
        """Return whether it continues without a client."""
        return bool(self.request_fields["background"])

    @property
    def status(self) -> str:
        """Return the status under OpenAI's name."""
        if self.outcome is not None:
            return self.outcome.status
        return "in_progress" if self.is_begun or not self.is_background else "queued"

    @property
    def has_thought(self) -> bool:
        """Return whether the reply has begun with a thought."""
        return len(self.thought) > 0

    @property
    def has_message(self) -> bool:
        """Return whether there is a message; without text, only if there is nothing else."""
        if not self.is_begun or len(self.text) > 0:
            return self.is_begun
        if not (self.has_parts or self.has_thought or self.request_fields["tools"]):
            return True
        return self.outcome is not None and not (self.has_thought or self.calls)

    def add(self, text: str, tokens: list[Token], generated: int = 0) -> None:
        """Add a delta of the text, after which `generated` tokens have been generated."""
        self.text.add(text, generated)
        if self.tokens is not None:
            self.tokens.append(tokens)

    def add_call(self, delta: CallDelta) -> None:
        """Add a call, or a delta to its arguments."""
        if delta.begun is not None:
            self.calls.append(CallState(delta.begun))
        else:
            self.calls[delta.index].add(delta.arguments)
