"""How conversations are kept: the numbers that an operator may choose."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Limits of memory, disk and time. None means no limit."""

    seats: int | None = None
    """Sequences of the model to use; None for all of them."""
    park_s: float = 300.0
    """Idle sessions leave memory after this time."""
    snapshot_tokens: int | None = None
    """A conversation gets a snapshot when it has grown by this number of tokens; None for S + W."""
    replay_tokens: int | None = None
    """A parked session that so few tokens rebuild gets no snapshot; None for (S + W) / 8."""
    saved_early: int | None = None
    """How many of the sessions that give up their seats next are kept saved while all seats are
    taken; None for a quarter of the seats, but at least one."""
    max_replay: int | None = None
    """The most tokens to read again for a turn whose state is lost."""
    ttl_s: float | None = 30 * 86400.0
    """Conversations that have not been used for this long are deleted."""
    max_bytes: int | None = 20 << 30
    """The size of the store beyond which the oldest snapshots, then conversations, are deleted."""
    max_conversations: int | None = None
    """The number per tenant; beyond it, the oldest are deleted."""
    thoughts: str | None = None
    """Of `Model.session`: what conversations keep of the thoughts of earlier replies."""
    full_sync: bool = False
    """Whether a committed turn also survives a power cut."""
    upkeep_s: float = 5.0
    """How often idle sessions, age and size are checked."""
    replica: str = ""
    """The name of this process among those that use the store; "" if it is the only one."""
    address: str = ""
    """Where other replicas can ask this one to release a conversation; "" if they cannot."""
    snapshots: str = ""
    """A folder, or "s3://…", for snapshots; "" is a folder inside the store's folder.

    In a folder, each store has a subfolder of its own."""
