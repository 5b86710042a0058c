"""One replica: a process with a model, the app of `sinkstream serve`, and an address for peers."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray import serve
from ray.experimental import internal_kv

import sinkstream
from sinkstream.cluster.peers.peer_requests import Internal
from sinkstream.cluster.ray.scaling import STATISTIC
from sinkstream.cluster.serving import Sharing, forwarding_app, retire
from sinkstream.server.answer import Receive
from sinkstream.server.config import ServerConfig
from sinkstream.server.http_limits import CONNECTION, check_descriptors
from sinkstream.server.middleware import App
from sinkstream.server.request_log import Scope
from sinkstream.server.serve import address_of, make_server, open_socket
from sinkstream.server.server_sent_events import Send
from sinkstream.server.service import Service

logger = logging.getLogger("sinkstream.server")

PERIOD_S = 1.0
"""How often Ray asks for a replica's health."""
_TICK_S = 0.5
_SILENT_TICKS = 6  # three periods
_KEY = b"sinkstream:peer_secret"
_HEADS = ("http.response.start", "websocket.accept", "websocket.http.response.start")


@dataclass(frozen=True, slots=True)
class Plan:
    """What all replicas have in common."""

    model: str | None
    config: ServerConfig
    load: dict[str, Any] = field(default_factory=dict)
    """Further options of `sinkstream.load`."""


class Replica:
    """The class that Ray Serve deploys."""

    async def __init__(self, plan: Plan) -> None:  # type: ignore[misc]  # Ray awaits it
        """Load the model, and open the store."""
        check_descriptors(plan.config.max_connections)
        # Not where clients connect: Ray's proxies do that.
        listener = open_socket(ray.util.get_node_ip_address(), 0)
        self._name = serve.get_replica_context().replica_tag
        config = replace(
            plan.config,
            replica=self._name,
            address=address_of(listener),
            peer_secret=plan.config.peer_secret or _shared_secret(),
        )
        self._silence = Silence()
        self._service = service = Service(config)
        self._model = model = await asyncio.to_thread(_load, plan)
        service.prepare(model)
        service.serve(model, await asyncio.to_thread(Sharing().open_turns, model, config))
        self._app = forwarding_app(service)
        self._peers = make_server(Internal(self._app, service, only_peers=True), service)
        self._tasks = [
            asyncio.create_task(self._peers.serve(sockets=[listener])),
            asyncio.create_task(service.health.run(self._on_stall)),
            asyncio.create_task(self._watch()),
        ]

    def __serve_build_asgi_app__(self) -> App:
        return _Proxied(self._app, self._name)

    async def check_health(self) -> None:
        """Say whether the replica can serve; Ray replaces it otherwise.

        Raises:
            RuntimeError: It cannot.
        """
        self._silence.note_question()
        if self._service.trouble is not None:
            raise RuntimeError(f"the replica is not healthy: {self._service.trouble}")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the number of replies that are running or waiting."""
        return {STATISTIC: float(self._service.admission.in_progress)}

    async def __del__(self) -> None:
        """Park all conversations and stop. Ray calls this after the last request."""
        if not hasattr(self, "_tasks"):
            return
        self._peers.should_exit = True
        for task in self._tasks[1:]:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait(self._tasks)
        await asyncio.to_thread(self._service.close)
        await asyncio.to_thread(self._model.close)

    def _on_stall(self) -> None:
        for stream in self._service.replies:
            stream.cancel()

    async def _watch(self) -> None:
        """Get ready to leave whenever Ray stops asking; stay if it asks again."""
        retiring: asyncio.Task[None] | None = None
        while True:
            await asyncio.sleep(_TICK_S)
            if self._silence.tick():
                if retiring is None:
                    logger.info(
                        "server: Ray has not called for some time; the replica is preparing to "
                        "shut down."
                    )
                    drain_s = self._service.config.drain_s
                    retiring = asyncio.create_task(retire(self._service, drain_s))
            elif retiring is not None:
                retiring.cancel()
                retiring = None
                self._service.drain_begins.clear()


def _load(plan: Plan) -> sinkstream.Model:
    return sinkstream.load(plan.model, **plan.load)


class _NoConnection:
    """Takes the place of a connection: clients connect to Ray's proxy, not to a replica."""

    is_surplus = False
    is_stalled = False


class _Proxied:
    """Gives a request from Ray's proxy what the middleware expects of a connection."""

    def __init__(self, app: App, name: str) -> None:
        self._app = app
        self._header = (b"x-sinkstream-replica", name.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def named(message: MutableMapping[str, Any]) -> None:
            if message["type"] in _HEADS:
                message = {**message, "headers": [*message.get("headers", ()), self._header]}
            await send(message)

        scope.setdefault("state", {})[CONNECTION] = _NoConnection()
        await self._app(scope, receive, named)


class Silence:
    """Notices that Ray Serve no longer asks for a replica's health. Belongs to one event loop.

    This is the only sign of a drain that a replica gets: no public call announces it, and the
    destructor runs only after the last request, which never comes while an endless stream runs.
    Silence can also mean that the controller has failed, so the reaction must not harm a replica
    that stays.

    Ticks and questions run on the same loop, so a loop that stood still does not count as silence.
    """

    def __init__(self) -> None:
        self._ticks: int | None = None  # until the first question

    def note_question(self) -> None:
        """Note a question."""
        self._ticks = 0

    def tick(self) -> bool:
        """Note that `_TICK_S` has passed; return whether it has been silent for too long."""
        if self._ticks is None:
            return False
        self._ticks += 1
        return self._ticks >= _SILENT_TICKS


def _shared_secret() -> str:
    """Return the secret that replicas of one Ray cluster use to talk to each other. Blocks briefly.

    It is kept in Ray's key-value store rather than in the deployment's arguments: with a new secret
    for each `serve deploy`, Ray would replace all replicas each time.
    """
    internal_kv._internal_kv_put(_KEY, secrets.token_hex(16).encode(), overwrite=False)
    secret: bytes = internal_kv._internal_kv_get(_KEY)
    return secret.decode()
