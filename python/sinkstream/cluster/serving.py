"""A server that shares its store with others: its app, its conversations, and how it leaves."""

from __future__ import annotations

import asyncio

from sinkstream.cluster.open_shared_store import SharedSettings, missing, shared_conversations
from sinkstream.cluster.peers.peer_requests import Asking, Internal, fence_of
from sinkstream.cluster.replica_fence import ReplicaFence
from sinkstream.conversations.plain_turns import PlainTurns
from sinkstream.conversations.turns import Turns
from sinkstream.model import Model
from sinkstream.server.app import create_app
from sinkstream.server.config import NO_STORE, ServerConfig
from sinkstream.server.middleware import App
from sinkstream.server.serve import Alone
from sinkstream.server.service import Service
from sinkstream.server.store_choice import folder_of, limits_of

_POLL_S = 0.1
_END_S = 5.0  # for replies to be committed, after they were shortened


class Sharing(Alone):
    """What such a server does differently. Without a secret, it does not talk to the others."""

    def app(self, service: Service) -> App:
        """Return the server's app."""
        app = forwarding_app(service)
        return Internal(app, service) if service.config.peer_secret else app

    def open_turns(self, model: Model, config: ServerConfig) -> Turns:
        """Return the object that begins the server's turns. Blocks.

        Raises:
            StoreError: The store cannot be used.
        """
        if config.store == NO_STORE:
            return PlainTurns(model, config.pinned)
        settings = SharedSettings(
            **limits_of(config), replica=config.replica, address=config.address
        )
        store = config.store if config.is_in_database else folder_of(model, config)
        turns = shared_conversations(model, store, settings)
        if config.peer_secret and isinstance(turns.fence, ReplicaFence):
            turns.fence.ask = Asking(config.peer_secret)
        return turns

    async def park_all(self, service: Service) -> None:
        """Save and give up the idle conversations, so that other servers need not read them again.

        Call it while this server still responds to its peers: conversations that they take without
        a response are replayed.
        """
        fence = fence_of(service)
        if service.config.peer_secret and fence is not None:
            await asyncio.to_thread(fence.park_all)


def forwarding_app(service: Service) -> App:
    """Return an app that forwards requests to the owners of the responses that they name.

    Raises:
        StoreError: The packages of the extra are missing.
    """
    if not service.config.peer_secret:
        return create_app(service)
    try:
        from sinkstream.cluster.peers.forwarding import Forwarding
    except ModuleNotFoundError as error:
        raise missing("serve", "`peer_secret`", error) from None
    return create_app(service, lambda app: Forwarding(app, service))


# ---- leaving while a successor takes over --------------------------------------------------------


async def retire(service: Service, within_s: float) -> None:
    """Close idle sockets, let replies finish, end those that last longer, and park everything.

    Unlike a shutdown, it refuses nothing: requests that still arrive are handled. Replies that are
    ended have the finish reason `length`: their clients can continue from their turns, which are
    stored.

    Args:
        service: The server.
        within_s: The time that replies have to finish.
    """
    sharing = Sharing()
    service.drain_begins.set()
    await sharing.park_all(service)
    await _until_idle(service, within_s)
    shorten_replies(service)
    await _until_idle(service, _END_S)
    await sharing.park_all(service)


def shorten_replies(service: Service) -> None:
    """End the running replies as if they had reached their length."""
    for stream in service.replies:
        service.shortened.add(stream)
        stream.cancel()


async def _until_idle(service: Service, within_s: float) -> None:
    end = asyncio.get_running_loop().time() + within_s
    while service.admission.in_progress and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(_POLL_S)
