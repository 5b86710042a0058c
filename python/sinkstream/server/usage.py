"""What a reply has cost and how it ended, in OpenAI's fields and in sinkstream's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sinkstream.conversations.turns import TurnEnd, TurnFacts
from sinkstream.streams.events import FinishReason, Stats

# Strict clients know no other reasons; the exact word is in `sinkstream.finish_reason`.
_REASONS = {"stop": "stop", "stop_string": "stop", "length": "length", "timeout": "length"}


def finish_reason(reason: FinishReason, *, has_calls: bool = False) -> str:
    """Return how a reply ended, under OpenAI's name; `has_calls`: whether it calls tools."""
    return "tool_calls" if has_calls and reason == "stop" else _REASONS[reason]


def usage_of(ends: Sequence[tuple[TurnFacts, TurnEnd]], prompts: int = 1) -> dict[str, Any]:
    """Return the usage of a request.

    Args:
        ends: How each choice ended, in order.
        prompts: The number of different prompts; each counts once.
    """
    each = max(1, len(ends) // prompts)
    firsts = ends[::each]
    prompt_tokens = sum(facts.prompt_tokens for facts, _ in firsts)
    cached = sum(cached_tokens(facts, end.stats) for facts, end in firsts)
    generated = sum(end.stats.generated_tokens for _, end in ends)
    thoughts = sum(end.thought_tokens for _, end in ends)
    details = {"completion_tokens_details": {"reasoning_tokens": thoughts}} if thoughts else {}
    return {
        **counts(prompt_tokens, generated),
        "prompt_tokens_details": {"cached_tokens": min(cached, prompt_tokens)},
        **details,
        "sinkstream": own_facts(*ends[0]),
    }


def cached_tokens(facts: TurnFacts, stats: Stats) -> int:
    """Return how many tokens before a reply were not read for it."""
    return max(facts.cached_tokens, stats.cached_tokens - facts.read_tokens)


def counts(prompt_tokens: int, generated: int) -> dict[str, Any]:
    """Return the three counts of every usage."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": prompt_tokens + generated,
    }


def cache_facts(facts: TurnFacts, stats: Stats) -> dict[str, int]:
    """Return how much of a conversation the model sees once a reply has begun, and how much not."""
    read = facts.prompt_tokens + stats.generated_tokens - 1  # the last token is read with the next
    return {
        "live_tokens": stats.live_tokens,
        "total_evicted_tokens": max(0, read - stats.live_tokens),
    }


def own_facts(facts: TurnFacts, end: TurnEnd) -> dict[str, Any]:
    """Return what only this server can say about a reply."""
    return {
        **cache_facts(facts, end.stats),
        "evicted_tokens": end.stats.evicted_tokens,
        "replayed_tokens": facts.replayed_tokens,
        "state": facts.state,
        "node": end.node or None,
        "session": facts.session,
    }
