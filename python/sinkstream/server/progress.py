"""How far the prompt of a reply has been read, as chunks of its stream: llama.cpp's field."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from sinkstream.conversations.turns import Turn
from sinkstream.server.usage import cached_tokens

_POLL_S = 0.05


async def prompt_progress(turn: Turn) -> AsyncIterator[dict[str, Any]]:
    """Yield `prompt_progress` when it changes, until the whole prompt has been read.

    The first one counts what was already in memory, the last one all tokens of the prompt.
    """
    begun_at = time.monotonic()
    total = turn.facts.prompt_tokens
    cached, told = 0, -1
    while told < total:
        stats = turn.stream.stats
        if told < 0:
            cached = cached_tokens(turn.facts, stats)
            read = cached + turn.facts.read_tokens
        elif stats.time_to_first_token_s is not None:
            read = total
        elif turn.stream.finish_reason is not None:
            return  # it has ended before its first token
        else:
            # The last token is read together with the first one of the reply.
            read = min(stats.live_tokens + stats.evicted_tokens, total - 1)
        if read > told:
            told = read
            elapsed_ms = round((time.monotonic() - begun_at) * 1000)
            yield {"total": total, "cache": cached, "processed": read, "time_ms": elapsed_ms}
        else:
            await asyncio.sleep(_POLL_S)
