"""One response: what was asked, how far the reply has come, and how it ended.

All events and the `response` object are made from it, at any time and for any number of clients.
Its text is bounded by `max_output_tokens`; no event is kept.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

from sinkstream.server.tools import CallDelta
from sinkstream.streams.events import Token
from sinkstream.text.tools.tool_call import ToolCall


@dataclass(slots=True)
class Outcome:
    """How a response ended."""

    status: str
    """"completed", "incomplete", "failed" or "cancelled"."""
    completed_at: int | None = None
    """None unless it is completed."""
    incomplete: str | None = None
    """The reason, in OpenAI's words."""
    error: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    own: dict[str, Any] | None = None
    """Facts that only this server has."""


@dataclass(slots=True)
class CallState:
    """A call of a tool, with its arguments in the pieces that are its deltas."""

    call: ToolCall
    deltas: list[str] = field(default_factory=list)

    def add(self, arguments: str) -> None:
        """Add a delta."""
        self.call.arguments += arguments
        self.deltas.append(arguments)


@dataclass(slots=True)
class ResponseState:
    """Of one response; the text is UTF-8, in the pieces that are its deltas."""

    echo: dict[str, Any]
    """The fields of the response that repeat the request, its id among them."""
    tenant: str
    is_begun: bool = False
    """Whether the reply has begun: until then, it waits for memory."""
    text: bytearray = field(default_factory=bytearray)
    ends: array[int] = field(default_factory=lambda: array("I"))
    """Where each delta ends in the text."""
    tokens: list[list[Token]] | None = None
    """Of each delta; None unless log-probabilities are asked for."""
    calls: list[CallState] = field(default_factory=list)
    """After the text."""
    outcome: Outcome | None = None
    """None while it is in progress."""

    @property
    def has_message(self) -> bool:
        """Return whether there is a message: of a reply that may call tools, only with text."""
        if not self.echo["tools"] or len(self.ends) > 0:
            return True
        return self.outcome is not None and not self.calls

    @property
    def id(self) -> str:
        """Return the response's id."""
        return str(self.echo["id"])

    @property
    def is_background(self) -> bool:
        """Return whether it goes on without a client."""
        return bool(self.echo["background"])

    @property
    def status(self) -> str:
        """Return the status in OpenAI's words."""
        if self.outcome is not None:
            return self.outcome.status
        return "in_progress" if self.is_begun or not self.is_background else "queued"

    def add(self, text: str, tokens: list[Token]) -> None:
        """Add a delta."""
        self.text += text.encode()
        self.ends.append(len(self.text))
        if self.tokens is not None:
            self.tokens.append(tokens)

    def add_call(self, delta: CallDelta) -> None:
        """Add a call, or a delta to its arguments."""
        if delta.begun is not None:
            self.calls.append(CallState(delta.begun))
        else:
            self.calls[delta.index].add(delta.arguments)

    def delta(self, number: int) -> str:
        """Return the text of a delta, counted from 0."""
        begin = self.ends[number - 1] if number else 0
        return self.text[begin : self.ends[number]].decode()

    @property
    def sizes(self) -> list[int]:
        """Return the bytes of each delta."""
        return [end - begin for begin, end in zip([0, *self.ends], self.ends, strict=False)]
