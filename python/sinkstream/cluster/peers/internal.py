"""Handles requests from peers, in front of the middleware: they have a secret, not an API key.

Without the secret, or with a different one, the paths do not exist: the middleware and the app
respond.
"""

from __future__ import annotations

import asyncio
from functools import partial
from urllib.parse import parse_qs

import orjson

from sinkstream.cluster.peers.asking import RELEASE, is_peer
from sinkstream.cluster.replica_fence import ReplicaFence
from sinkstream.conversations.conversations import Conversations
from sinkstream.server.answer import Receive
from sinkstream.server.middleware import App
from sinkstream.server.request_log import Scope
from sinkstream.server.server_sent_events import Send
from sinkstream.server.service import Service

PARK = "/internal/park"
_SUFFICES_S = 0.15  # of the time that the peer waits


class Internal:
    """Wraps the middleware."""

    def __init__(self, app: App, service: Service, *, only_peers: bool = False) -> None:
        """Wrap `app`; with `only_peers`, requests from anyone else get 404."""
        self._app = app
        self._service = service
        self._only_peers = only_peers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a peer's request, or pass the request on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        may_ask = is_peer(scope, self._service.config.peer_secret)
        if may_ask and scope.get("method") == "POST" and scope["path"] in (RELEASE, PARK):
            await self._answer(scope, send)
        elif may_ask or not self._only_peers:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            await _respond(send, 404, {"error": "not_found"})

    async def _answer(self, scope: Scope, send: Send) -> None:
        fence = fence_of(self._service)
        if fence is None:
            await _respond(send, 409, {"error": "no_store"})
        elif scope["path"] == PARK:
            await asyncio.to_thread(fence.park_all)
            await _respond(send, 200, {"parked": True})
        else:
            named = parse_qs(scope["query_string"].decode("latin-1")).get("session", [""])[0]
            # Not on the pool of the routes: two servers that ask each other would wait for it.
            released = await asyncio.to_thread(partial(fence.release, named, _SUFFICES_S))
            await _respond(send, 200 if released else 409, {"released": released})


def fence_of(service: Service) -> ReplicaFence | None:
    """Return the fence of a server's conversations; None if there are none, or none yet."""
    turns = service.turns if service.loaded else None
    fence = turns.fence if isinstance(turns, Conversations) else None
    return fence if isinstance(fence, ReplicaFence) else None


async def _respond(send: Send, status: int, body: object) -> None:
    data = orjson.dumps(body)
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": data, "more_body": False})
