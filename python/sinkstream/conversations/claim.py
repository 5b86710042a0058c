"""Who may write a conversation: a claim names its owner's epoch, and every write carries one."""

from __future__ import annotations

from dataclasses import dataclass

from sinkstream.errors import SinkstreamError


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to write a conversation, until another replica takes it."""

    session: str
    """The conversation's id."""
    epoch: int
    """Grows by 1 with each take."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A process that shares a store with others."""

    name: str
    address: str
    """Where others reach it; "" if they cannot."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The replica that last took a conversation."""

    replica: Replica
    """Its name is "" if the conversation was given up."""
    epoch: int
    is_alive: bool


class SessionMoved(SinkstreamError, RuntimeError):
    """Another replica has taken the conversation; nothing was written."""

    code = "session_moved"

    def __init__(self, session: str) -> None:
        super().__init__(
            f"stream: the conversation {session} moved to another replica before this turn "
            "was complete. Send the request again."
        )
