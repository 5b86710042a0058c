"""A completed turn of a conversation: what was read, and what the model replied."""

from __future__ import annotations

import secrets
from array import array
from dataclasses import dataclass, replace
from hashlib import blake2b

SETTLED = "-settled"
"""Ends the id of a settled form, which begins with that of its turn; a draft's digest follows."""
CLOSED = -1  # no token's id


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
    """The reply's last token; None if it has none. `CLOSED` if the reply's end was read, too."""
    session_key: str | None = None
    finish_reason: str = "stop"
    is_after_settled: bool = False
    """Whether it follows its parent's settled form."""
    is_settled: bool = False
    """Whether later turns follow it as it is: no thoughts are left out of it, or before it."""

    @property
    def is_closed(self) -> bool:
        """Return whether what ends the reply is part of the turn."""
        return self.last_id == CLOSED

    @property
    def base(self) -> str | None:
        """Return the id of the state that it was read after; None for the beginning."""
        if self.parent is None or not self.is_after_settled:
            return self.parent
        return settled_id(self.parent)

    @property
    def is_form(self) -> bool:
        """Return whether it is the settled form of a turn, or a draft of it."""
        return is_settled_id(self.id)

    @property
    def is_draft(self) -> bool:
        """Return whether it is a settled form that is not stored."""
        return self.is_form and not self.id.endswith(SETTLED)


# Note: [Settled forms]
# Most chat templates leave out the thoughts of replies once the user writes again. Removing them
# from the cache would not be the same: later keys were computed in their presence. So a turn has
# two ends: the one that was generated, and its settled form, which is the settled form of the turn
# before, and then its messages and its reply without thoughts, as the template writes them. A form
# is read when the first user message follows; its ids are kept, so that it can be replayed. It is a
# node of its own for whatever restores states, and named after its turn. A turn without thoughts,
# after settled turns only, is its own settled form.
#
# The ids depend on the tools and on `thinking` of the request that reads the form first. Until they
# are stored, it is a draft, and its id has a digest of them: other requests may have other drafts.


@dataclass(frozen=True, slots=True)
class Form:
    """The settled form of a turn, and how it is read."""

    node: Node
    """Its `parent` is the state that `ids` follow."""
    ids: array[int]

    @property
    def turn_id(self) -> str:
        """Return the id of the turn."""
        return turn_of(self.node.id)


def draft_of(turn: Node, base: Node | None, ids: array[int]) -> Form:
    """Return a draft of the settled form of a turn, which is read after the state `base`.

    Args:
        turn: The turn, or another draft of its form.
        base: A turn, a form or a draft; None for the beginning.
        ids: What is read.
    """
    tokens = len(ids) + (0 if base is None else base.tokens)
    name = None if base is None else base.id
    digest = blake2b(f"{name} ".encode() + ids.tobytes(), digest_size=16).hexdigest()
    node = form_node(turn, name, tokens)
    return Form(replace(node, id=f"{node.id}-{digest}"), ids)


def stored_form(draft: Form) -> Form:
    """Return what a draft is called once it is stored, with all drafts before it."""
    node = draft.node
    parent = node.parent
    if parent is not None and is_settled_id(parent):
        parent = settled_id(turn_of(parent))
    return Form(form_node(node, parent, node.tokens), draft.ids)


def form_node(turn: Node, base: str | None, tokens: int) -> Node:
    """Return the settled form of a turn that ends after some tokens."""
    return replace(
        turn, id=settled_id(turn_of(turn.id)), parent=base, tokens=tokens, last_id=None,
        is_after_settled=False, is_settled=True,
    )  # fmt: skip


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
    sinks: int | None = None
    """S of the conversation, if this is its first turn; None for the model's."""
    is_after_settled: bool = False
    """Whether `read_ids` follow the parent's settled form."""

    @property
    def is_unnamed(self) -> bool:
        """Return whether it begins a conversation that its client can only resend."""
        return self.parent is None and not self.record and not self.session_key

    def without_contents(self) -> NewNode:
        """Return it without what only the store needs, and clients may make long."""
        return replace(self, read_ids=array("i"), messages="", given="", record="", title="")


def settled_id(node_id: str) -> str:
    """Return the id of a turn's settled form."""
    return node_id + SETTLED


def turn_of(name: str) -> str:
    """Return the id of the turn that an id names, or whose settled form it names."""
    return name.partition(SETTLED)[0]


def is_settled_id(name: str) -> bool:
    """Return whether an id is that of a settled form, or of a draft."""
    return SETTLED in name


def new_id(kind: str) -> str:
    """Return an id that cannot be guessed: "resp" for a turn, "sess" for a conversation."""
    return f"{kind}_{secrets.token_hex(16)}"
