"""What servers that share a store ask each other, and how they answer.

Requests from peers are handled in front of the middleware: they have a secret, not an API key.
Without the secret, or with a different one, the paths do not exist: the middleware and the app
respond.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
import threading
import time
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import orjson

from sinkstream.cluster.owners import Replica
from sinkstream.cluster.replica_fence import ReplicaFence
from sinkstream.conversations.conversations import Conversations
from sinkstream.server.answer import Receive
from sinkstream.server.middleware import App
from sinkstream.server.request_log import Scope
from sinkstream.server.server_sent_events import Send
from sinkstream.server.service import Service

logger = logging.getLogger("sinkstream.server")

RELEASE = "/internal/release"
PARK = "/internal/park"
HEADER = b"x-sinkstream-peer"
"""The header with the secret that all peers share."""
ANSWER_S = 0.2
"""Without a response by then, the conversation is taken."""
SILENCE_S = 5.0
"""How long an address that did not connect in time is not tried again."""
_SUFFICES_S = 0.15  # of the time that the peer waits


def is_peer(scope: Any, secret: str) -> bool:
    """Return whether a request comes from a peer; never without a secret."""
    given = [value for name, value in scope["headers"] if name == HEADER]
    return bool(secret) and len(given) == 1 and hmac.compare_digest(given[0], secret.encode())


class Asking:
    """Asks owners. Any thread may call it."""

    def __init__(self, secret: str) -> None:
        """Ask with the secret that all peers share."""
        self._secret = secret
        self._silent: dict[str, float] = {}
        """When an address did not connect in time. Replaced, never changed."""

    def __call__(self, owner: Replica, session: str) -> bool:
        """Return whether the owner has released a conversation. Blocks for at most `ANSWER_S`.

        Only looking up a host's name, and trying its other addresses, may take longer.
        """
        silent_at = self._silent.get(owner.address)
        if silent_at is not None and time.monotonic() - silent_at < SILENCE_S:
            return False
        try:
            return self._status(owner.address, session) == 200
        except (OSError, HTTPException) as error:  # a TimeoutError is an OSError
            logger.info(
                "replica %s does not answer, so conversation %s is taken over from it: %s",
                owner.name,
                session,
                error,
            )
            return False

    def _status(self, address: str, session: str) -> int:
        where = urlsplit(address)
        kind = HTTPSConnection if where.scheme == "https" else HTTPConnection
        deadline = time.monotonic() + ANSWER_S
        connection = kind(where.hostname or "", where.port, timeout=ANSWER_S)
        try:
            connection.connect()
        except TimeoutError:
            self._note_silence(address)
            raise
        # The library's limit is for each part of an answer: this one is for the whole.
        end = threading.Timer(max(0.0, deadline - time.monotonic()), _cut, [connection.sock])
        end.start()
        try:
            headers = {HEADER.decode(): self._secret, "connection": "close"}
            connection.request("POST", f"{RELEASE}?session={quote(session)}", headers=headers)
            status = connection.getresponse().status
            if time.monotonic() > deadline:
                raise TimeoutError("timed out")
            return status
        finally:
            end.cancel()
            connection.close()

    def _note_silence(self, address: str) -> None:
        now = time.monotonic()
        kept = {other: at for other, at in self._silent.items() if now - at < SILENCE_S}
        self._silent = {**kept, address: now}


def _cut(connection: socket.socket) -> None:
    """End what another thread sends and receives."""
    with suppress(OSError):  # it has ended already
        connection.shutdown(socket.SHUT_RDWR)


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
