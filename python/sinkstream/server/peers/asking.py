"""Asks the owner of a conversation to release it."""

from __future__ import annotations

import http.client
import logging
from contextlib import closing
from urllib.parse import quote, urlsplit

from sinkstream.server.conversations.claim import Replica
from sinkstream.server.peers.secret import HEADER

logger = logging.getLogger("sinkstream.server")

RELEASE = "/internal/release"
ANSWER_S = 0.2
"""Without an answer until then, the conversation is taken."""


def ask_release(secret: str, owner: Replica, session: str) -> bool:
    """Return whether the owner has released a conversation. Blocks."""
    where = urlsplit(owner.address)
    with closing(http.client.HTTPConnection(where.netloc, timeout=ANSWER_S)) as connection:
        try:
            path = f"{RELEASE}?session={quote(session)}"
            connection.request("POST", path, headers={HEADER.decode(): secret})
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException) as error:
            logger.info("%s does not answer and loses %s: %s", owner.name, session, error)
            return False
