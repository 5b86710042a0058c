"""Repeats a response for a client that sends its request again, with the same `Idempotency-Key`.

A request with a key goes on if its client leaves, so that it can be repeated: what it sends is
kept, and each client that sends the request follows that from its beginning. What is kept is
bounded, for each API key by its share; it is lost with the process.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from sinkstream.server.admission import KeyShares, Weights, refusal
from sinkstream.server.answer import Receive, until_left
from sinkstream.server.errors import ApiError, invalid
from sinkstream.server.request_log import KEY, RequestLog, Scope
from sinkstream.server.server_sent_events import Send

CREATING = ("/chat/completions", "/completions", "/responses")
"""The paths, after /v1 or without it, whose requests are repeated."""
MOST_BYTES = 32 << 20
MOST_OF_ONE = 1 << 20
"""Bytes of a response that can be repeated; of a longer one, only what is not sent is kept."""
KEPT_S = 3600.0
ALONE_S = 60.0
"""How long a request goes on without a client."""
_LEAST_BYTES = 1024  # that a response counts, however short
_MOST_CHARACTERS = 255

App = Callable[[Scope, Receive, Send], Awaitable[None]]
_Name = tuple[str, str]  # an API key's tenant, and the key of a request


@dataclass(eq=False, slots=True)
class _Kept:
    """A response, and those who follow it."""

    digest: bytes
    """Of the request."""
    log: RequestLog
    ends_at: float
    messages: list[Any] = field(default_factory=list)
    first: int = 0
    """The number of the first message that is kept."""
    size: int = _LEAST_BYTES
    followers: dict[int, int] = field(default_factory=dict)
    """How many messages each has sent."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    is_failed: bool = False
    """Whether a repeated request is to be a new one."""
    error: BaseException | None = None
    """What has ended the app, if it failed."""

    @property
    def is_long(self) -> bool:
        """Return whether it cannot be repeated."""
        return self.size > MOST_OF_ONE

    def notify(self) -> None:
        """Wake those that wait for more, or for a follower."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


def key_of(scope: Scope) -> str | None:
    """Return the key of a request that is to be repeated; None if it has none.

    Raises:
        ApiError: The key is not valid.
    """
    path = scope["path"].removeprefix("/v1")
    if scope.get("method") != "POST" or path not in CREATING:
        return None
    keys = [value for name, value in scope["headers"] if name == b"idempotency-key"]
    if not keys:
        return None
    key: str = keys[0].decode("latin-1")
    is_valid = len(keys) == 1 and key.isascii() and key.isprintable()
    if not is_valid or not 0 < len(key) <= _MOST_CHARACTERS:
        raise invalid(
            f"headers: `Idempotency-Key` must be 1 to {_MOST_CHARACTERS} characters of printable "
            "ASCII.",
            "Idempotency-Key",
        )
    return key


class Repeats:
    """The responses that can be repeated. Belongs to one event loop."""

    def __init__(self, weights: Weights, clock: Callable[[], float] = time.monotonic) -> None:
        self.shares = KeyShares(MOST_BYTES, weights)
        self._clock = clock
        self._kept: dict[str, OrderedDict[str, _Kept]] = {}
        """By tenant and by key, oldest first."""

    async def run(self, app: App, key: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app for a request, or follow the response that it has for it already.

        Raises:
            ApiError: The key belongs to a different request, or there is no room.
            Exception: Any error that the app raises.
        """
        log: RequestLog = scope[KEY]
        name = log.tenant, key
        digest = blake2b(b"\0".join((scope["path"].encode(), bytes(log.body)))).digest()
        kept = self._find(name, digest)
        if kept is None:
            kept = self._begin(app, name, digest, scope)
        else:
            log.drop_body()
        await self._follow(kept, log, receive, send)

    def _find(self, name: _Name, digest: bytes) -> _Kept | None:
        kept = self._found(name)
        if kept is None:
            return None
        if kept.digest != digest:
            raise ApiError(
                422,
                "invalid_request_error",
                "idempotency_key_reused",
                "headers: `Idempotency-Key` must be new for a new request, but belongs to one with "
                "a different body or path.",
                "Idempotency-Key",
            )
        if kept.is_long and kept.first > 0:
            raise ApiError(
                409,
                "conflict_error",
                "response_too_long",
                f"headers: the response for this `Idempotency-Key` has more than {MOST_OF_ONE} "
                "bytes and cannot be repeated. Use a new key.",
                "Idempotency-Key",
            )
        return kept

    def _begin(self, app: App, name: _Name, digest: bytes, scope: Scope) -> _Kept:
        log: RequestLog = scope[KEY]
        self._make_room(name[0], _LEAST_BYTES)
        kept = _Kept(digest, replace(log), self._clock() + KEPT_S)
        log.body = b""
        self.shares.take(name[0], kept.size)
        self._kept.setdefault(name[0], OrderedDict())[name[1]] = kept
        kept.task = asyncio.create_task(self._produce(app, name, kept, {**scope, KEY: kept.log}))
        return kept

    def _found(self, name: _Name) -> _Kept | None:
        of_key = self._kept.get(name[0])
        return None if of_key is None else of_key.get(name[1])

    def _make_room(self, tenant: str, size: int) -> None:
        """Forget what is old, then a key's own oldest responses that have ended."""
        now = self._clock()
        for of_key in list(self._kept):
            while (oldest := self._oldest(of_key)) and oldest[1].ends_at <= now:
                self._forget(*oldest)
        while not self.shares.has_room(tenant, size) and (oldest := self._oldest(tenant)):
            self._forget(*oldest)
        if not self.shares.has_room(tenant, size):
            rule = f"responses that can be repeated have at most {MOST_BYTES} bytes"
            raise refusal(self.shares, tenant, size, rule, f"and {size} more are needed")

    def _oldest(self, tenant: str) -> tuple[_Name, _Kept] | None:
        """Return a key's oldest response that has ended: few run, and there may be very many."""
        of_key = self._kept.get(tenant, OrderedDict[str, _Kept]())
        ended = (((tenant, key), kept) for key, kept in of_key.items() if kept.task is None)
        return next(ended, None)

    def _forget(self, name: _Name, kept: _Kept) -> None:
        if self._found(name) is kept:
            del self._kept[name[0]][name[1]]
            if not self._kept[name[0]]:
                del self._kept[name[0]]
            self.shares.give_back(name[0], kept.size)

    async def _produce(self, app: App, name: _Name, kept: _Kept, scope: Scope) -> None:
        """Run the app; keep what it sends."""

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                kept.log.status = message["status"]
                kept.is_failed = message["status"] >= 400
            elif not message.get("more_body", False):
                kept.log.is_complete = True
            kept.messages.append(message)
            self._count(name, kept, len(message.get("body", b"")))
            kept.notify()
            while kept.is_long and kept.messages:  # at the pace of its clients
                await kept.changed.wait()

        watching = asyncio.create_task(self._watch(kept))
        try:
            await app(scope, _never, send)
        except BaseException as error:
            kept.is_failed, kept.error = True, error
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            watching.cancel()
            kept.task = None
            kept.log.drop_body()
            if kept.is_failed:
                self._forget(name, kept)
            kept.notify()

    def _count(self, name: _Name, kept: _Kept, size: int) -> None:
        kept.size += size
        if self._found(name) is kept:
            self.shares.take(name[0], size)

    async def _watch(self, kept: _Kept) -> None:
        """End a request that has had no client for a while."""
        while True:
            changed = kept.changed
            if kept.followers:
                await changed.wait()
                continue
            try:
                async with asyncio.timeout(ALONE_S):
                    await changed.wait()
            except TimeoutError:
                assert kept.task is not None
                kept.task.cancel()
                return

    async def _follow(self, kept: _Kept, log: RequestLog, receive: Receive, send: Send) -> None:
        """Send a response from its beginning, until it ends or the client leaves."""
        following = asyncio.ensure_future(self._send_all(kept, send))
        leaving = asyncio.ensure_future(until_left(receive))
        try:
            await asyncio.wait({following, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            following.cancel()  # no effect if it has ended
            await asyncio.wait({following, leaving})
            for fact in ("queued_s", "choices", "prompt_tokens", "generated_tokens", "finish"):
                setattr(log, fact, getattr(kept.log, fact))
        if following.cancelled():
            log.finish = "client_left"
            return
        following.result()

    async def _send_all(self, kept: _Kept, send: Send) -> None:
        me = id(asyncio.current_task())
        kept.followers[me] = 0
        kept.notify()
        try:
            while kept.task is not None or kept.followers[me] < kept.first + len(kept.messages):
                while (number := kept.followers[me]) < kept.first + len(kept.messages):
                    message = kept.messages[number - kept.first]
                    kept.followers[me] += 1
                    await send(message)
                    self._drop_sent(kept)
                if kept.task is not None:
                    await kept.changed.wait()
        finally:
            del kept.followers[me]
            kept.notify()
        if kept.error is not None and not isinstance(kept.error, asyncio.CancelledError):
            raise kept.error

    def _drop_sent(self, kept: _Kept) -> None:
        """Drop what all clients of a long response have been sent."""
        if kept.is_long:
            sent = min(kept.followers.values())
            del kept.messages[: sent - kept.first]
            kept.first = sent
            kept.notify()


async def _never() -> Any:
    """Receive nothing: whether a client leaves is not the app's business."""
    await asyncio.Event().wait()
