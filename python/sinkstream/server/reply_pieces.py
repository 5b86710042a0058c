"""Reads replies: as pieces of text, as tokens with their log-probabilities, or as a whole."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sinkstream.streams.events import Finished, Token
from sinkstream.streams.kept_tokens import ScoredPrompt
from sinkstream.streams.served_stream import ServedStream
from sinkstream.text.messages import ToolCall

_MOST_TOKENS = 16
"""Of a piece with log-probabilities: a client that does not read holds it as objects and as JSON,
which take a hundred times as much as the core holds of a token."""


@dataclass(slots=True)
class CallDelta:
    """What has been added to one of a reply's calls."""

    index: int
    begun: ToolCall | None = None
    """The call without arguments, if it has just begun."""
    arguments: str = ""


@dataclass(slots=True)
class CallDeltas:
    """Follows the calls of a reply."""

    _sent: list[int] = field(default_factory=list)

    def next(self, calls: Sequence[ToolCall]) -> list[CallDelta]:
        """Return what has been added since the last time."""
        deltas = []
        for index, call in enumerate(calls[max(0, len(self._sent) - 1) :], len(self._sent[:-1])):
            if index == len(self._sent):
                deltas.append(CallDelta(index, ToolCall(call.id, call.name)))
                self._sent.append(0)
            if len(call.arguments) > self._sent[index]:
                deltas.append(CallDelta(index, arguments=call.arguments[self._sent[index] :]))
                self._sent[index] = len(call.arguments)
        return deltas


@dataclass(slots=True)
class Piece:
    """A part of a reply."""

    text: str = ""
    thought: str = ""
    """A reasoning model's thought, which comes before the text."""
    tokens: list[Token] = field(default_factory=list)
    """Empty unless tokens are requested."""
    delta: CallDelta | None = None
    """What has been added to a tool call; then there is nothing else."""
    calls: list[ToolCall] = field(default_factory=list)
    """The calls of a whole reply."""
    prompt: ScoredPrompt = field(default_factory=ScoredPrompt)
    """The prompt of a whole reply, if its log-probabilities are requested."""


async def pieces(
    stream: ServedStream, flush_s: float, *, with_tokens: bool
) -> AsyncIterator[Piece]:
    """Yield a reply in pieces: the first one at once, the others at least `flush_s` apart.

    While this waits, the native side joins what is generated. A piece has text, a thought, or a
    part of a tool call. The stream keeps none of them. If more has been generated than a piece with
    tokens may have, the next one follows at once.
    """
    stream.keep_no_tail()
    calls = CallDeltas()
    as_events = with_tokens or stream.has_parts
    most = _MOST_TOKENS if with_tokens else None
    while (piece := await _next(stream, most, as_events=as_events)) is not None:
        read_at = time.monotonic()
        if piece.thought:
            yield Piece(thought=piece.thought)
        tokens = piece.tokens
        if piece.text or tokens:
            yield Piece(piece.text, tokens=tokens)
        if stream.has_events:
            await asyncio.sleep(0)  # lets other tasks run
            continue
        deltas = calls.next(stream.tool_calls) if as_events else []
        for delta in deltas:
            yield Piece(delta=delta)
        if piece.thought or piece.text or tokens or deltas:
            rest_s = flush_s - (time.monotonic() - read_at)
            if rest_s > 0 and stream.finish_reason is None:
                await asyncio.sleep(rest_s)


async def whole(stream: ServedStream, *, with_tokens: bool) -> Piece:
    """Return a reply as one piece."""
    if not with_tokens:
        result = await stream.aresult()
        return Piece(result.text, result.thought, calls=result.tool_calls)
    reply = Piece()
    async for piece in pieces(stream, 0, with_tokens=True):
        reply.text += piece.text
        reply.thought += piece.thought
        reply.tokens += piece.tokens
    reply.calls, reply.prompt = stream.tool_calls, stream.scored_prompt
    return reply


async def _next(stream: ServedStream, most: int | None, *, as_events: bool) -> Piece | None:
    if not as_events:
        text = await anext(stream, None)
        return None if text is None else Piece(text)
    events = await stream.anext_events(most)
    if not events:
        return None
    text = thought = ""
    tokens: list[Token] = []
    for event in events:
        match event:
            case Token(kind="thought"):
                thought += event.text
            case Token(kind="text"):
                text += event.text
                tokens += [event] * (most is not None)
            case Finished():
                text += event.text
                thought += event.thought
    return Piece(text, thought, tokens)


def as_chunk(delta: CallDelta) -> dict[str, Any]:
    """Return an item of `delta.tool_calls` in a chunk of a chat completion."""
    if delta.begun is None:
        return {"index": delta.index, "function": {"arguments": delta.arguments}}
    return {"index": delta.index, **delta.begun.as_message()}
