"""Stores: where they are, and turns to write into them."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import sinkstream
from sinkstream.conversations.conversation_writer import ConversationWriter
from sinkstream.conversations.conversations import Conversations
from sinkstream.conversations.node import NewNode, Node, new_id
from sinkstream.conversations.open_store import Settings, open_folder
from sinkstream.conversations.store import Store
from tests.python.conversations.talk import OPENED


class StoreLocation:
    """Where a store is: in a folder, which one process at a time uses."""

    is_postgres = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: list[Store] = []

    def open(self) -> Store:
        self.opened.append(open_folder(self.folder, "model", Settings()).store)
        return self.opened[-1]

    def conversations(self, model: sinkstream.Model, **settings: Any) -> Conversations:
        OPENED.append(Conversations(model, self.folder, Settings(**settings)))
        return OPENED[-1]

    def close(self) -> None:
        while self.opened:
            self.opened.pop().close()


def begun(conversation: str | None = None, parent: str | None = None, **more: Any) -> NewNode:
    """Return the beginning of a turn that reads three tokens."""
    fields: dict[str, Any] = {
        "id": new_id("resp"), "parent": parent, "conversation": conversation or new_id("sess"),
        "tenant": "ada", "session_key": None, "read_ids": array("i", [1, 2, 3]), "messages": "[]",
        "before": b"x" * 32, "given": "", "tokens": 3, **more,
    }  # fmt: skip
    return NewNode(**fields)


def writer_of(store: Store, new: NewNode) -> ConversationWriter:
    """Return what writes the conversation of a turn, in a store that one process uses."""
    return ConversationWriter(store, new.conversation)


def ended(new: NewNode, reply: list[int], mark: bytes) -> Node:
    """Return a turn with a reply."""
    return Node(
        new.id, new.parent, new.conversation, new.tenant, mark * 32, new.tokens + len(reply),
        reply[-1] if reply else None,
    )  # fmt: skip


def finish(
    store: Store,
    new: NewNode,
    reply: list[int],
    mark: bytes,
    writer: ConversationWriter | None = None,
) -> Node:
    """Write the end of a turn that has begun."""
    node = ended(new, reply, mark)
    writer = writer or writer_of(store, new)
    writer.finish(node, 0, array("i", reply), "text").result()
    return node
