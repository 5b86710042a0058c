"""Stores of both kinds, without a model: where they are, and turns to write."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sinkstream.conversations.claim import Claim
from sinkstream.conversations.node import NewNode, Node, new_id
from sinkstream.conversations.opening import open_store
from sinkstream.conversations.schema import TABLES
from sinkstream.conversations.settings import Settings
from sinkstream.conversations.store import Store


@dataclass
class StoreLocation:
    """Where a store is: a folder, or the address of a database."""

    address: Path | str
    snapshots: Path
    opened: list[Store] = field(default_factory=list)

    @property
    def is_postgres(self) -> bool:
        return isinstance(self.address, str)

    def settings(self, replica: str = "", **more: Any) -> Settings:
        return Settings(replica=replica, snapshots=str(self.snapshots), **more)

    def open(self, replica: str = "", model: str = "model") -> Store:
        self.opened.append(open_store(self.address, model, self.settings(replica)))
        return self.opened[-1]

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


def claim_of(new: NewNode) -> Claim:
    """Return the claim of the replica in whose conversation a turn is the first."""
    return Claim(new.conversation, 1)


def ended(new: NewNode, reply: list[int], mark: bytes) -> Node:
    """Return a turn with a reply."""
    return Node(
        new.id, new.parent, new.conversation, new.tenant, mark * 32, new.tokens + len(reply),
        reply[-1] if reply else None,
    )  # fmt: skip


def finish(
    store: Store, new: NewNode, reply: list[int], mark: bytes, claim: Claim | None = None
) -> Node:
    """Write the end of a turn that has begun."""
    node = ended(new, reply, mark)
    store.finish(claim or claim_of(new), node, 0, array("i", reply), "text").result()
    return node


def contents(store: Store) -> dict[str, list[Any]]:
    """Return all rows of a store, but for who is alive."""
    return {
        table: sorted(store._rows(f"SELECT * FROM {table}"), key=repr)
        for table in TABLES
        if table != "replicas"
    }
