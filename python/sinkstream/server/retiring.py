"""Prepares a server to leave while its successor already gets the new requests.

Unlike a shutdown, it refuses nothing: requests that still arrive are handled.
"""

from __future__ import annotations

import asyncio

from sinkstream.conversations.conversations import Conversations
from sinkstream.server.service import Service

_POLL_S = 0.1
_END_S = 5.0  # for replies to be committed, after they were shortened


async def retire(service: Service, within_s: float) -> None:
    """Close idle sockets, let replies finish, end those that last longer, and park everything.

    Replies that are ended have the finish reason `length`: their clients can continue from their
    turns, which are stored.

    Args:
        service: The server.
        within_s: The time that replies have to finish.
    """
    service.drain_begins.set()
    await park_all(service)
    await _until_idle(service, within_s)
    shorten_replies(service)
    await _until_idle(service, _END_S)
    await park_all(service)


async def park_all(service: Service) -> None:
    """Save and give up the idle conversations, so that other servers need not read them again.

    Call it while this server still responds to its peers: conversations that they take without a
    response are replayed.
    """
    turns = service.turns if service.loaded else None
    if service.config.peer_secret and isinstance(turns, Conversations):
        await asyncio.to_thread(turns.park_all)


def shorten_replies(service: Service) -> None:
    """End the running replies as if they had reached their length."""
    for stream in service.replies:
        service.shortened.add(stream)
        stream.cancel()


async def _until_idle(service: Service, within_s: float) -> None:
    end = asyncio.get_running_loop().time() + within_s
    while service.admission.in_progress and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(_POLL_S)
