"""Asks the owner of a conversation to release it."""

from __future__ import annotations

import logging
import socket
import time
from contextlib import closing
from urllib.parse import quote, urlsplit

from sinkstream.conversations.claim import Replica
from sinkstream.server.peers.secret import HEADER

logger = logging.getLogger("sinkstream.server")

RELEASE = "/internal/release"
ANSWER_S = 0.2
"""Without a response by then, the conversation is taken."""
SILENCE_S = 5.0
"""How long an address that did not connect in time is not tried again."""
_PART = 1 << 12


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
            return self._status(owner.address, session) == b"200"
        except OSError as error:  # a TimeoutError is one
            logger.info(
                "replica %s does not answer, so conversation %s is taken over from it: %s",
                owner.name,
                session,
                error,
            )
            return False

    def _status(self, address: str, session: str) -> bytes:
        where = urlsplit(address)
        deadline = time.monotonic() + ANSWER_S
        try:
            connection = socket.create_connection((where.hostname, where.port or 80), ANSWER_S)
        except TimeoutError:
            self._note_silence(address)
            raise
        with closing(connection):
            head = (
                f"POST {RELEASE}?session={quote(session)} HTTP/1.1\r\n"
                f"host: {where.netloc}\r\n"
                f"{HEADER.decode()}: {self._secret}\r\n"
                "content-length: 0\r\n"
                "connection: close\r\n\r\n"
            )
            _limit(connection, deadline)
            connection.sendall(head.encode())
            line = b""
            while b"\n" not in line:
                _limit(connection, deadline)
                part = connection.recv(_PART)
                if not part:
                    raise ConnectionError("the connection was closed")
                line += part
        return line.split(b" ", 2)[1] if line.startswith(b"HTTP/1.") else b""

    def _note_silence(self, address: str) -> None:
        now = time.monotonic()
        kept = {other: at for other, at in self._silent.items() if now - at < SILENCE_S}
        self._silent = {**kept, address: now}


def _limit(connection: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    connection.settimeout(left)
