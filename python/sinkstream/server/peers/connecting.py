"""Connects a store's conversations with the peers that share it."""

from __future__ import annotations

from sinkstream.conversations.conversations import Conversations
from sinkstream.conversations.turns import Turns
from sinkstream.server.config import ServerConfig
from sinkstream.server.peers.asking import Asking


def connect_peers(turns: Turns, config: ServerConfig) -> None:
    """Let conversations ask their owners for a release, if there is a secret."""
    if config.peer_secret and isinstance(turns, Conversations):
        turns.ask_release = Asking(config.peer_secret)
