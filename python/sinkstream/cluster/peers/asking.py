"""Asks the owner of a conversation to release it; and how a peer shows that it is one."""

from __future__ import annotations

import hmac
import logging
import socket
import threading
import time
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlsplit

from sinkstream.cluster.owners import Replica

logger = logging.getLogger("sinkstream.server")

RELEASE = "/internal/release"
HEADER = b"x-sinkstream-peer"
"""The header with the secret that all peers share."""
ANSWER_S = 0.2
"""Without a response by then, the conversation is taken."""
SILENCE_S = 5.0
"""How long an address that did not connect in time is not tried again."""


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
