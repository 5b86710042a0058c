"""Limits what is in progress: replies, and the bytes that requests and whole replies hold.

What is beyond a limit is refused, not queued.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from sinkstream.request.options import StreamOptions
from sinkstream.server.errors import ApiError, at_capacity, invalid
from sinkstream.server.request_bodies import ChatRequest, CompletionRequest
from sinkstream.server.shares import Shares, Weights

MOST_WHOLE_BYTES = 128 << 20
"""The most bytes for the replies of one request."""
MOST_WHOLE_AT_ONCE = 4
"""Requests of that size, in progress at the same time."""
MOST_DOWNLOADS, MOST_OF_A_KEY = 16, 4
"""Session files that are made or sent at the same time."""
# Measured: a token's text and id, read and written; a log-probability with its bytes, likewise.
_TOKEN_BYTES = 64
_LOGPROB_BYTES = 900
_MOST_LOGPROBS = 64  # of a token; more are refused where all callers' are


class Admission:
    """Counts replies in progress. Belongs to one event loop."""

    def __init__(self, limit: int, weights: Weights) -> None:
        """Allow `limit` replies, generated and waiting ones together."""
        self._shares = Shares(limit, weights)

    @property
    def limit(self) -> int:
        """Return how many replies a single request may ask for."""
        return self._shares.limit - self._shares.reserve

    def set_limit(self, limit: int) -> None:
        """Allow another number of replies."""
        self._shares.limit = limit

    @property
    def in_progress(self) -> int:
        """Return the replies in progress."""
        return self._shares.held

    def enter(self, count: int, tenant: str = "") -> None:
        """Count `count` more replies, or refuse them with the time after which to try again."""
        shares = self._shares
        if not shares.has_room(tenant, count):
            raise refusal(
                shares,
                tenant,
                count,
                f"at most {shares.limit} replies can be in progress",
                f"and this request asks for {count} more",
            )
        shares.take(tenant, count)

    def leave(self, count: int, tenant: str = "") -> None:
        """Count `count` replies as ended."""
        self._shares.give_back(tenant, count)


class ByteBudget:
    """Counts bytes that are held. Belongs to one event loop."""

    def __init__(self, limit: int, what: str, weights: Weights | None = None) -> None:
        """Allow `limit` bytes of `what`, such as "the bodies of all requests"."""
        self._shares = Shares(limit, weights or {})
        self._what = what

    @property
    def held(self) -> int:
        """Return the bytes that are held."""
        return self._shares.held

    def take(self, count: int, tenant: str = "") -> None:
        """Count bytes that are held now; refuse those that would exceed the limit."""
        shares = self._shares
        if not shares.has_room(tenant, count):
            rule = f"{self._what} must have at most {shares.limit} bytes in total"
            raise refusal(shares, tenant, count, rule, f"and {count} more arrive")
        shares.take(tenant, count)

    def count(self, change: int, tenant: str = "") -> bool:
        """Count bytes that have arrived already, or are gone; return whether those have room."""
        has_room = change <= 0 or self._shares.has_room(tenant, change)
        if change > 0:
            self._shares.take(tenant, change)
        else:
            self._shares.give_back(tenant, -change)
        return has_room

    def give_back(self, count: int, tenant: str = "") -> None:
        """Count bytes that are no longer held."""
        self._shares.give_back(tenant, count)

    @contextmanager
    def taken(self, count: int, tenant: str = "") -> Iterator[None]:
        """Count bytes that are held within the block; refuse those that would exceed the limit."""
        self.take(count, tenant)
        try:
            yield
        finally:
            self.give_back(count, tenant)


def refusal(shares: Shares, tenant: str, count: int, rule: str, wanted: str) -> ApiError:
    """Return the error for what exceeds a limit, or a key's share of it."""
    own, most = shares.held_by(tenant), shares.most_of(tenant)
    found = f"but {shares.held} are held, {wanted}"
    if own + count > most and shares.held + count <= shares.limit:
        found = f"of which this key may hold {most} now; it holds {own}, {wanted}"
    return at_capacity(
        f"server: {rule}, {found}. Try again later.", shares.retry_after_s(tenant, count)
    )


class Downloads:
    """Counts files that are being made or sent. Belongs to one event loop."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()

    def enter(self, tenant: str) -> None:
        """Count one more, or refuse it: each takes its size on disk until its client has it."""
        if self._held.total() >= MOST_DOWNLOADS or self._held[tenant] >= MOST_OF_A_KEY:
            raise at_capacity(
                f"server: at most {MOST_DOWNLOADS} session files can be sent at a time, and "
                f"{MOST_OF_A_KEY} for each key. Try again later.",
                1,
            )
        self._held[tenant] += 1

    def leave(self, tenant: str) -> None:
        """Count one as sent, or as given up."""
        self._held[tenant] -= 1
        self._held += Counter()  # drops tenants that have none


def whole_bytes(
    body: ChatRequest | CompletionRequest, options: StreamOptions, replies: int, tokens_name: str
) -> int:
    """Return the memory that the replies of a request may take; 0 if they are streamed.

    What is too much is refused; the error names the field that multiplies it, or `tokens_name`,
    which limits the length of a reply.
    """
    if body.stream:
        return 0
    has_logprobs = body.logprobs is not None and body.logprobs is not False
    logprobs = 1 + min(options.get("logprobs") or 0, _MOST_LOGPROBS) if has_logprobs else 0
    tokens = options.get("max_tokens") or 0
    total = replies * _memory_of(tokens, logprobs)
    if total <= MOST_WHOLE_BYTES:
        return max(0, total)
    if has_logprobs:
        name = "top_logprobs" if isinstance(body, ChatRequest) and logprobs > 1 else "logprobs"
    else:
        name = "n" if replies > 1 else tokens_name
    raise invalid(
        f"body: `{name}` must allow at most {MOST_WHOLE_BYTES >> 20} MiB of replies without "
        f"`stream`, but {replies} replies of {tokens} tokens with {logprobs} log-probabilities "
        f"each may take {total >> 20} MiB. Set `stream`, or ask for less.",
        name,
    )


def prompt_bytes(tokens: int, alternatives: int, name: str) -> int:
    """Return the memory that the log-probabilities of prompts may take; refuse too much.

    `tokens` are those of all prompts, each with this many `alternatives`; the field `name` asks for
    them.
    """
    logprobs = 1 + min(alternatives, _MOST_LOGPROBS)
    total = _memory_of(tokens, logprobs)
    if total > MOST_WHOLE_BYTES:
        raise invalid(
            f"body: `{name}` must allow at most {MOST_WHOLE_BYTES >> 20} MiB of log-probabilities, "
            f"but {tokens} tokens of prompts with {logprobs} each may take {total >> 20} MiB. "
            "Ask for fewer, or send a shorter prompt.",
            name,
        )
    return total


def response_bytes(options: StreamOptions) -> int:
    """Return the memory of a response, held in full even if it is streamed; refuse too much."""
    alternatives, tokens = options.get("logprobs"), options.get("max_tokens") or 0
    logprobs = 0 if alternatives is None else 1 + min(alternatives, _MOST_LOGPROBS)
    total = _memory_of(tokens, logprobs)
    if total > MOST_WHOLE_BYTES:
        name = "top_logprobs" if logprobs > 1 else "max_output_tokens"
        raise invalid(
            f"body: `{name}` must allow at most {MOST_WHOLE_BYTES >> 20} MiB of text and "
            f"log-probabilities, but {tokens} tokens with {logprobs} log-probabilities each may "
            f"take {total >> 20} MiB. Ask for less.",
            name,
        )
    return max(0, total)


def _memory_of(tokens: int, logprobs: int) -> int:
    return tokens * (_TOKEN_BYTES + logprobs * _LOGPROB_BYTES)
