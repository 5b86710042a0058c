"""How long a reply has taken, in llama.cpp's format."""

from __future__ import annotations

from typing import Any

from sinkstream.conversations.turns import TurnEnd, TurnFacts
from sinkstream.server.usage import cached_tokens


def timings_of(facts: TurnFacts, end: TurnEnd) -> dict[str, Any]:
    """Return the counts and times of a reply.

    The prompt's time runs to the first token, including waiting; the reply's covers the tokens
    after it.
    """
    stats = end.stats
    cached = min(cached_tokens(facts, stats), facts.prompt_tokens)
    read = facts.prompt_tokens - cached
    prompt_s = facts.read_s + (stats.time_to_first_token_s or 0.0)
    rate = stats.tokens_per_s or 0.0
    later = max(stats.generated_tokens - 1, 0)
    return {
        "cache_n": cached,
        "prompt_n": read,
        "prompt_ms": prompt_s * 1000,
        "prompt_per_token_ms": prompt_s * 1000 / read if read else 0.0,
        "prompt_per_second": read / prompt_s if prompt_s else 0.0,
        "predicted_n": stats.generated_tokens,
        "predicted_ms": later / rate * 1000 if rate else 0.0,
        "predicted_per_token_ms": 1000 / rate if rate else 0.0,
        "predicted_per_second": rate,
    }
