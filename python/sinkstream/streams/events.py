"""What happens on a stream, one plain value for each event, and what remains when it has ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sinkstream.request.options import Sampling

FinishReason = Literal["stop", "stop_string", "length", "timeout", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class Started:
    """The sequence has its memory. Shows what is in force: given, or drawn, or a default."""

    prompt_tokens: int
    seed: int
    sampling: Sampling
    request_id: int
    """Counts from 1 for each model; logs, traces and errors name it."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """`done` of `total` prompt tokens have been read."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Token:
    """One token."""

    text: str
    """The characters that it completes; often none, sometimes those of earlier tokens."""
    id: int
    logprob: float
    """Of the model itself: before bias, penalties, temperature and filters."""
    alternatives: tuple[tuple[int, float], ...] = ()
    """(id, logprob) of the `logprobs` likeliest tokens, best first."""


@dataclass(frozen=True, slots=True)
class Evicted:
    """`count` more tokens have left the cache for ever."""

    count: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event."""

    reason: FinishReason
    text: str = ""
    """What had been held back and belongs to no new token."""


Event = Started | Prefill | Token | Evicted | Finished


@dataclass(frozen=True, slots=True)
class Stats:
    """Counted and timed in the generation thread, whatever the consumer does."""

    request_id: int
    prompt_tokens: int
    generated_tokens: int
    cached_tokens: int
    """Tokens that were in the cache when the request came: those of a prompt that begins like an
    open session's, or all that a session holds."""
    evicted_tokens: int
    """Tokens, of prompt and reply, that have left the cache: the model no longer sees them."""
    live_tokens: int
    """Tokens in the cache; of a finished stream, when it ended."""
    cache_bytes: int
    """Of the pages that the stream holds; of a finished one, that it held."""
    time_to_first_token_s: float | None
    """From the request to the first token. None before it."""
    tokens_per_s: float | None
    """While it decodes; pauses that the consumer causes are left out. None before two tokens."""
    token_p50_s: float | None
    """Median time between tokens, right to 3 %."""
    token_p99_s: float | None
    consumer_lag: int
    """Tokens that are ready and have not been taken."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a stream has given.

    A stream without `max_tokens`, or with more than 65,536, keeps the last 4,096 tokens only; what
    it dropped is counted.
    """

    text: str
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    stats: Stats
    dropped_characters: int = 0
    dropped_tokens: int = 0
