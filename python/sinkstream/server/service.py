"""What all routes share: the model, its turns, admission, and health."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Protocol
from weakref import WeakSet

from starlette.requests import Request

from sinkstream import _build
from sinkstream.conversations.turns import TurnEnd, TurnFacts, Turns
from sinkstream.host import Host
from sinkstream.model import Model, host_of
from sinkstream.server.admission import (
    MOST_WHOLE_AT_ONCE,
    MOST_WHOLE_BYTES,
    Admission,
    ByteBudget,
    Downloads,
    KeyShares,
)
from sinkstream.server.api_keys import weights_of
from sinkstream.server.config import ServerConfig
from sinkstream.server.errors import ApiError, unavailable
from sinkstream.server.health import Health
from sinkstream.server.http_limits import Connections
from sinkstream.server.pool import Pool
from sinkstream.server.reply_rules import GrammarQueue
from sinkstream.server.request_log import RequestLog, short
from sinkstream.server.responses.live_responses import LiveResponses
from sinkstream.server.seats import Seats
from sinkstream.server.texts import Texts
from sinkstream.server.usage import cached_tokens
from sinkstream.streams.slices import Slices
from sinkstream.streams.stream import Stream
from sinkstream.text.tokenizers.encoding_limit import limiting

logger = logging.getLogger("sinkstream.server")
_BODIES = 4  # of the largest size may be held at the same time
_SMALLEST_MESSAGES = 1 << 20  # bytes: even empty messages take some
MAX_SOCKETS = 1000
"""WebSockets that can be open."""
_WINDOWS = 32  # the length of the text that may be encoded for a request
_LEAST_TEXT = 1 << 18  # tokens that it may have in any case
_BEGUN_AT_ONCE = 2  # requests, in one turn of the event loop
_MOST_IGNORED = 256  # names that the log has room for
_ENDLESS = 1 << 20  # tokens: clients want a number
_SENTENCES = {
    "loading": "server: the model is loading.",
    "draining": "server: the server is shutting down.",
    "engine_dead": "server: the generation thread has failed. Restart the server.",
    "stalled": "server: the engine has not completed a step for a long time.",
}


class Waiter(Protocol):
    """What waits for a seat."""

    queued_s: float


class Service:
    """One served model. Belongs to one event loop; the model is set once it is loaded."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        weights = self.weights = weights_of(config)
        self.pool = Pool(weights)
        self.slices = Slices(_BEGUN_AT_ONCE)
        self.sends = Slices()
        """What is sent to clients: a send gives up the GIL, and a busy thread takes it."""
        self.grammars = GrammarQueue(weights)
        self.health = Health(config.watchdog_s)
        self.bodies = ByteBudget(
            _BODIES * config.max_body_bytes, "the bodies of all requests", weights
        )
        self.messages = ByteBudget(
            _BODIES * max(config.max_body_bytes, _SMALLEST_MESSAGES),
            "the messages of all sockets",
            weights,
        )
        """What has arrived, and is not parsed yet: clients that do not read may hold it."""
        self.waiting_requests = ByteBudget(
            _BODIES * config.max_body_bytes, "the requests that wait", weights
        )
        self.whole_replies = ByteBudget(
            MOST_WHOLE_AT_ONCE * MOST_WHOLE_BYTES, "all replies that are not streamed", weights
        )
        self.largest_unread = config.max_body_bytes
        self.unread = ByteBudget(
            _BODIES * self.largest_unread, "the responses that their clients are reading", weights
        )
        """Whole responses, unless they are short; the largest count as `largest_unread` bytes."""
        self.connections = Connections(config.max_connections, config.send_timeout_s)
        self.admission = Admission(config.max_queue, weights)
        self.downloads = Downloads()
        self.replies: set[Stream] = set()
        self.shortened: WeakSet[Stream] = WeakSet()
        """Replies that end early, as if they had reached their length."""
        self.responses: Counter[tuple[str, int]] = Counter()
        """The number of responses by route and status."""
        self.responses_of_keys: Counter[tuple[str, int]] = Counter()
        """The same by key and status, if clients need keys."""
        self.tokens_of_keys: Counter[tuple[str, str]] = Counter()
        """The tokens that replies have read and generated, by key."""
        self.window_tokens: Counter[str] = Counter(evicted=0, pinned=0, dropped=0)
        """Of all replies, what has become of their conversations' tokens."""
        self.started_at = int(time.time())
        self.seats = Seats(0, weights)
        self.open_requests = 0
        self.requests_of_keys = KeyShares(config.max_connections, weights)
        """Requests and sockets in progress."""
        self.open_sockets = KeyShares(MAX_SOCKETS, weights)
        self.left: set[asyncio.Future[Any]] = set()
        """Work whose clients have been told that the engine has stalled, and that waits for it."""
        self.live = LiveResponses()
        self._ignored: set[str] = set()
        """Unknown fields that the log has named."""
        self.is_draining = False
        self.drain_begins = asyncio.Event()
        self.fingerprint = ""
        """A word that changes with the model, its settings and the version; "" before `prepare`."""
        self._model: Model | None = None
        self._host: Host | None = None
        self._turns: Turns | None = None
        self._texts: Texts | None = None

    def prepare(self, model: Model) -> None:
        """Prepare what routes need from a model. Blocks."""
        self._texts = Texts(host_of(model))
        self.fingerprint = _fingerprint(model)

    def serve(self, model: Model, turns: Turns) -> None:
        """Begin to handle requests, after `prepare` has returned."""
        self.admission.set_limit(model.capacity.max_sequences + self.config.max_queue)
        self.seats = Seats(model.capacity.max_sequences, self.weights)
        self._model, self._host, self._turns = model, host_of(model), turns
        turns.wait_in(self.pool.waiting)
        self.pool.context = partial(limiting, max(_LEAST_TEXT, _WINDOWS * model.capacity.tokens))
        self.health.watch(model)

    @property
    def trouble(self) -> str | None:
        """Return a code that says why no request can be handled; None if all is well."""
        if self.is_draining:
            return "draining"
        if self._model is None:
            return "loading"
        if self._model.stats()["is_dead"]:
            return "engine_dead"
        return "stalled" if self.health.is_stalled else None

    def check_ready(self) -> None:
        """Refuse a request while the server is loading, draining, stalled or dead."""
        if (code := self.trouble) is not None:
            raise unavailable(code, _SENTENCES[code])

    def stalled(self) -> ApiError:
        """Return the error for a request that waits for a stalled engine."""
        return unavailable("stalled", _SENTENCES["stalled"])

    def reason_of_cancel(self) -> ApiError:
        """Return the error for a reply that the server has ended."""
        code = self.trouble
        return unavailable(code or "cancelled", _SENTENCES.get(code or "", "server: cancelled."))

    @property
    def model(self) -> Model:
        """Return the model; `check_ready` must have passed."""
        assert self._model is not None
        return self._model

    @property
    def host(self) -> Host:
        """Return the model as this package sees it; `check_ready` must have passed."""
        assert self._host is not None
        return self._host

    @property
    def loaded(self) -> Model | None:
        """Return the model, or None while it is loading."""
        return self._model

    @property
    def turns(self) -> Turns:
        """Return where turns begin; `check_ready` must have passed."""
        assert self._turns is not None
        return self._turns

    @property
    def texts(self) -> Texts:
        """Return the tokenizer and the template; `check_ready` must have passed."""
        assert self._texts is not None
        return self._texts

    def head_of(self, kind: str, prefix: str) -> dict[str, Any]:
        """Return the fields that every response and chunk of a request begins with."""
        return {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": self.config.model_name,
            "system_fingerprint": self.fingerprint,
        }

    def check_model(self, name: str | None) -> None:
        """Refuse the name of a different model, if the server is strict."""
        if self.config.strict_model and name not in (None, self.config.model_name):
            raise self.no_model()

    def no_model(self) -> ApiError:
        """Return the error for a model that is not served."""
        return ApiError(
            404,
            "invalid_request_error",
            "model_not_found",
            f'server: `model` must be "{self.config.model_name}".',
            "model",
        )

    def count_response(self, route: str, log: RequestLog) -> None:
        """Count a response that has ended."""
        self.responses[route, log.status] += 1
        if self.weights:
            self.responses_of_keys[log.key, log.status] += 1

    def note_ignored(self, fields: Sequence[str]) -> None:
        """Log the unknown fields of requests, each name once."""
        for name in fields:
            if name not in self._ignored and len(self._ignored) < _MOST_IGNORED:
                self._ignored.add(name)
                logger.warning("server: the field `%s` of requests is unknown, and ignored.", name)

    def count_reply(self, tenant: str, facts: TurnFacts, end: TurnEnd) -> None:
        """Count what a reply has cost, and what the model has seen of its conversation."""
        if self.weights:
            key, cached = short(tenant), cached_tokens(facts, end.stats)
            self.tokens_of_keys[key, "read"] += max(0, facts.prompt_tokens - cached)
            self.tokens_of_keys[key, "generated"] += end.stats.generated_tokens
        self.window_tokens.update(
            evicted=end.stats.evicted_tokens,
            pinned=facts.pinned_tokens,
            dropped=facts.dropped_tokens,
        )

    @property
    def max_model_len(self) -> int:
        """Return the longest conversation that a client may send, as it is told."""
        if self.config.advertise_context:
            return self.config.advertise_context
        return self.model.capacity.tokens if self.config.refuses_overflow else _ENDLESS

    async def take_seat(self, waiter: Waiter, tenant: str, priority: int = 0) -> None:
        """Wait for a seat, and note how long that took, even if it is cancelled."""
        began_at = time.monotonic()
        try:
            await self.seats.acquire(tenant, priority)
        finally:
            waiter.queued_s = time.monotonic() - began_at

    def close(self) -> None:
        """End the pool, then the turns. The caller closes the model."""
        self.pool.close()
        self.grammars.close()
        if self._turns is not None:
            self._turns.close()


def ready_service(request: Request) -> Service:
    """Return the service for a request, unless it is to be refused now."""
    service: Service = request.app.state.service
    service.check_ready()
    return service


def _fingerprint(model: Model) -> str:
    runtime = model.runtime
    facts = (_build.version(), model.path, str(model.capacity), runtime["dtype"], runtime["device"])
    return "fp_" + blake2b(repr(facts).encode(), digest_size=6).hexdigest()
