"""Limits what is in progress: replies, and the bytes that requests and whole replies hold.

What is beyond a limit is refused, not queued. No key is harmed by another: it may hold all of a
limit but a reserve, which a second key needs to begin. It may use the reserve up to its share: the
limit divided by the weights of the keys that hold some of it. So what one key does not use serves
the others, and what a key holds beyond its share returns when it ends.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from sinkstream.request.options import StreamOptions
from sinkstream.server.errors import ApiError, at_capacity, invalid
from sinkstream.server.request_bodies import ChatRequest, CompletionRequest

MOST_WHOLE_BYTES = 128 << 20
"""The most bytes for the replies of one request."""
MOST_WHOLE_AT_ONCE = 4
"""Requests of that size, in progress at the same time."""
MOST_DOWNLOADS, MOST_OF_A_KEY = 16, 4
"""Session files that are made or sent at the same time."""
# Measured: a token's text and id, read and written; a log-probability with its bytes, likewise.
_TOKEN_BYTES = 64
_LOGPROB_BYTES = 900
_ECHO_BYTES = 4  # of a character, as text and as JSON
_MOST_LOGPROBS = 64  # of a token; more are refused where all callers' are
_REMEMBERED = 64  # ends, which give the rate at which a limit becomes free
_LONGEST_WAIT_S = 60

Weights = Mapping[str, float]
"""Those of the server's keys by tenant; empty without keys."""
CALLER: ContextVar[str] = ContextVar("caller", default="")
"""The tenant whose request the current task handles; "" without keys, and for the server itself."""


class _End(NamedTuple):
    at: float
    tenant: str
    amount: int


class KeyShares:
    """Counts what each key holds of a limit. Belongs to one event loop."""

    def __init__(
        self,
        limit: int,
        weights: Weights,
        reserve: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Share `limit` among keys; the reserve is a quarter of it, or `reserve`."""
        self.limit = limit
        self._weights = weights
        self._reserve = reserve
        self._clock = clock
        self._held: Counter[str] = Counter()
        self.held = 0
        self._ends: deque[_End] = deque(maxlen=_REMEMBERED)

    @property
    def reserve(self) -> int:
        """Return what a single key may not use; 0 if there is no second one."""
        if len(self._weights) < 2:
            return 0
        whole = self.limit // 4 if self._reserve is None else self._reserve
        return min(whole, self.limit // 2)

    def held_by(self, tenant: str) -> int:
        """Return what a key holds."""
        return self._held[tenant]

    def most_of(self, tenant: str) -> int:
        """Return how much a key may hold now."""
        keys = {*self._held, tenant}
        share = self.limit * self.weight(tenant) / sum(map(self.weight, keys))
        free = self.limit - self.held
        of_reserve = min(math.ceil(share), self.limit - self.reserve)
        return min(
            self.held_by(tenant) + free,
            max(of_reserve, self.held_by(tenant) + free - self.reserve),
        )

    def weight(self, tenant: str) -> float:
        """Return a key's weight."""
        return self._weights.get(tenant, 1.0)

    def has_room(self, tenant: str, count: int = 1) -> bool:
        """Return whether a key may hold `count` more."""
        return self.held_by(tenant) + count <= self.most_of(tenant)

    def next_of(self, waiting: Iterable[str]) -> str | None:
        """Return the key that holds the fewest by its weight; None if none may hold more.

        Of several such keys, it is the first one.
        """
        may = (tenant for tenant in waiting if self.has_room(tenant))
        return min(may, key=lambda one: self.held_by(one) / self.weight(one), default=None)

    def take(self, tenant: str, count: int = 1) -> None:
        """Count what a key holds from now on."""
        self._held[tenant] += count
        self.held += count

    def give_back(self, tenant: str, count: int = 1) -> None:
        """Count what a key holds no longer."""
        if count == 0:
            return
        self.held -= count
        self._held[tenant] -= count
        if self._held[tenant] == 0:
            del self._held[tenant]
        self._ends.append(_End(self._clock(), tenant, count))

    def retry_after_s(self, tenant: str, count: int = 1) -> int:
        """Return the seconds until a key may hold `count` more, at the rate of the recent ends.

        If it is its own share that is used up, those are its own ends.
        """
        is_own = self.held + count <= self.limit
        ends = [end for end in self._ends if not is_own or end.tenant == tenant]
        if len(ends) < 2:
            return 1
        missing = self.held_by(tenant) + count - self.most_of(tenant)
        span = self._clock() - ends[0].at
        freed = sum(end.amount for end in ends)
        return max(1, min(_LONGEST_WAIT_S, math.ceil(span / freed * max(missing, 1))))


class Admission:
    """Counts replies in progress. Belongs to one event loop."""

    def __init__(self, limit: int, weights: Weights) -> None:
        """Allow `limit` replies, generated and waiting ones together."""
        self._shares = KeyShares(limit, weights)

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
        self._shares = KeyShares(limit, weights or {})
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


def refusal(shares: KeyShares, tenant: str, count: int, rule: str, wanted: str) -> ApiError:
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

    @contextmanager
    def counted(self, tenant: str) -> Iterator[None]:
        """Count one in the block, or refuse it: it takes space on disk until its client has it."""
        if self._held.total() >= MOST_DOWNLOADS or self._held[tenant] >= MOST_OF_A_KEY:
            raise at_capacity(
                f"server: at most {MOST_DOWNLOADS} session files can be sent at a time, and "
                f"{MOST_OF_A_KEY} for each key. Try again later.",
                1,
            )
        self._held[tenant] += 1
        try:
            yield
        finally:
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


def echo_bytes(characters: int) -> int:
    """Return the memory of prompts that replies repeat, also if these are streamed.

    `characters` are those of all choices. Too many are refused.
    """
    most = MOST_WHOLE_BYTES // _ECHO_BYTES
    if characters > most:
        raise invalid(
            f"body: `echo` must repeat at most {most} characters in all choices, but they have "
            f"{characters}. Ask for fewer choices, or leave it out.",
            "echo",
        )
    return characters * _ECHO_BYTES


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
