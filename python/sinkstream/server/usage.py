"""What a reply has cost and how it ended: fields of OpenAI, of llama.cpp and of sinkstream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

from sinkstream.conversations.turns import Turn, TurnEnd, TurnFacts
from sinkstream.streams.events import FinishReason, Stats

# Strict clients know no other reasons; the exact word is in `sinkstream.finish_reason`.
_REASONS = {"stop_string": "stop", "timeout": "length"}
_POLL_S = 0.05


def exact_reason(end: TurnEnd) -> FinishReason | Literal["tool_calls"]:
    """Return how a reply ended."""
    return "tool_calls" if end.has_calls and end.finish_reason == "stop" else end.finish_reason


def finish_reason(end: TurnEnd) -> str:
    """Return how a reply ended, under OpenAI's name."""
    exact = exact_reason(end)
    return _REASONS.get(exact, exact)


def usage_of(
    ends: Sequence[tuple[TurnFacts, TurnEnd]],
    prompts: int = 1,
    *,
    has_prediction: bool = False,
    ignored: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the usage of a request.

    Args:
        ends: How each choice ended, in order.
        prompts: The number of different prompts; each counts once.
        has_prediction: Whether the request says what the reply probably is.
        ignored: The request's fields that are unknown.
    """
    each = max(1, len(ends) // prompts)
    firsts = ends[::each]
    prompt_tokens = sum(facts.prompt_tokens for facts, _ in firsts)
    cached = sum(cached_tokens(facts, end.stats) for facts, end in firsts)
    generated = sum(end.stats.generated_tokens for _, end in ends)
    thoughts = sum(end.thought_tokens for _, end in ends)
    details = {"reasoning_tokens": thoughts} if thoughts else {}
    if has_prediction:
        accepted = sum(end.stats.accepted_tokens for _, end in ends)
        drafted = sum(end.stats.draft_tokens for _, end in ends)
        details["accepted_prediction_tokens"] = accepted
        details["rejected_prediction_tokens"] = drafted - accepted
    return {
        **counts(prompt_tokens, generated),
        "prompt_tokens_details": {"cached_tokens": min(cached, prompt_tokens)},
        **({"completion_tokens_details": details} if details else {}),
        "sinkstream": own_facts(*ends[0], ignored),
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


def own_facts(facts: TurnFacts, end: TurnEnd, ignored: Sequence[str]) -> dict[str, Any]:
    """Return what only this server can say about a reply."""
    return {
        "finish_reason": exact_reason(end),
        **cache_facts(facts, end.stats),
        "evicted_tokens": end.stats.evicted_tokens,
        "pinned_tokens": facts.pinned_tokens,
        "dropped_prompt_tokens": facts.dropped_tokens,
        "replayed_tokens": facts.replayed_tokens,
        "state": facts.state,
        "node": end.node or None,
        "session": facts.session,
        **({"warning": facts.warning} if facts.warning else {}),
        **({"ignored_fields": ignored} if ignored else {}),
    }


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
        "draft_n": stats.draft_tokens,
        "draft_n_accepted": stats.accepted_tokens,
    }


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
