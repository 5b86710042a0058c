"""A completed turn of a conversation: what was read, and what the model replied."""

from __future__ import annotations

import secrets
from array import array
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """A turn, without its tokens."""

    id: str
    """"resp_" and 32 hexadecimal digits."""
    parent: str | None
    """The turn that it follows; None for the first one of a conversation."""
    conversation: str
    """"sess_" and 32 hexadecimal digits: shared by all turns that have one root."""
    tenant: str
    hash: bytes
    """Of all messages up to the reply's end."""
    tokens: int
    """Ids of the conversation up to the reply's end, including evicted ones."""
    last_id: int | None
    """The reply's last token; None if it has none."""
    session_key: str | None = None
    finish_reason: str = "stop"


@dataclass(frozen=True, slots=True)
class NewNode:
    """A turn that begins."""

    id: str
    parent: str | None
    conversation: str
    tenant: str
    session_key: str | None
    read_ids: array[int]
    """What the turn reads after its parent."""
    messages: str
    """The canonical messages that these are, as JSON."""
    before: bytes
    """The hash of the conversation before the reply, without what of it was given."""
    given: str
    """The beginning of the reply that was given, not generated."""
    tokens: int
    """Ids of the conversation up to the reply's beginning."""
    record: str = ""
    """The request's own, kept as it is."""
    title: str = ""
    """How the conversation begins, if this is its first turn."""


def new_id(kind: str) -> str:
    """Return an id that cannot be guessed: "resp" for a turn, "sess" for a conversation."""
    return f"{kind}_{secrets.token_hex(16)}"
