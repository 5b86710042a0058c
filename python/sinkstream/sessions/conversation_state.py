"""Where a conversation is between two turns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConversationState:
    """The state of a conversation between turns, which the next message continues."""

    after: str | None = None
    """The role of the last message; None before the first one, "system" after a system prompt."""
    reply_is_open: bool = False
    """Whether the last message is a reply without its closing."""
