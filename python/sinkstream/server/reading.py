"""Reads replies: as pieces of text, as tokens with their log-probabilities, or as a whole."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from sinkstream.streams.events import Finished, Token
from sinkstream.streams.stream import Stream


@dataclass(slots=True)
class Piece:
    """A part of a reply."""

    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    """Empty unless tokens are asked for."""


async def pieces(stream: Stream, flush_s: float, *, with_tokens: bool) -> AsyncIterator[Piece]:
    """Yield a reply in pieces: the first one at once, the others at least `flush_s` apart.

    While this waits, the native side joins what is generated.
    """
    while (piece := await _next(stream, with_tokens=with_tokens)) is not None:
        read_at = time.monotonic()
        if piece.text or piece.tokens:
            yield piece
            rest_s = flush_s - (time.monotonic() - read_at)
            if rest_s > 0 and stream.finish_reason is None:
                await asyncio.sleep(rest_s)


async def whole(stream: Stream, *, with_tokens: bool) -> Piece:
    """Return a reply as one piece."""
    if not with_tokens:
        return Piece((await stream.aresult()).text)
    reply = Piece()
    async for piece in pieces(stream, 0, with_tokens=True):
        reply.text += piece.text
        reply.tokens += piece.tokens
    return reply


async def _next(stream: Stream, *, with_tokens: bool) -> Piece | None:
    if not with_tokens:
        text = await anext(stream, None)
        return None if text is None else Piece(text)
    events = await stream._anext_events()
    if not events:
        return None
    tokens = [event for event in events if isinstance(event, Token)]
    texts = [event.text for event in events if isinstance(event, Token | Finished)]
    return Piece("".join(texts), tokens)
