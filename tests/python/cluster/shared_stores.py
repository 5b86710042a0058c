"""Stores that several replicas use: where they are, and who may write a conversation."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import sinkstream
from sinkstream.cluster.open_shared_store import SharedSettings, open_shared, shared_conversations
from sinkstream.cluster.owners import Claim, Owners
from sinkstream.cluster.replica_fence import ReplicaFence
from sinkstream.conversations.conversations import Conversations
from sinkstream.conversations.database import SERVED, TABLES
from sinkstream.conversations.node import NewNode, Node
from sinkstream.conversations.store import Store
from tests.python.conversations import stores
from tests.python.conversations.talk import OPENED, STILL

_OWNERS: dict[Store, Owners] = {}


@dataclass
class SharedLocation:
    """Where a store is: a folder, or the address of a database."""

    address: Path | str
    snapshots: Path
    opened: list[Store] = field(default_factory=list)

    @property
    def is_postgres(self) -> bool:
        return isinstance(self.address, str)

    def settings(self, replica: str = "", **more: Any) -> SharedSettings:
        return SharedSettings(**{"replica": replica, "snapshots": str(self.snapshots), **more})

    def open(self, replica: str = "", model: str = "model") -> Store:
        fence = open_shared(self.address, model, self.settings(replica))
        if isinstance(fence, ReplicaFence):
            _OWNERS[fence.store] = fence.owners
        self.opened.append(fence.store)
        return fence.store

    def conversations(
        self, model: sinkstream.Model, replica: str = "one", **settings: Any
    ) -> Conversations:
        shared = self.settings(replica, **settings)
        OPENED.append(shared_conversations(model, self.address, shared))
        return OPENED[-1]

    def close(self) -> None:
        while self.opened:
            store = self.opened.pop()
            store.close()
            _OWNERS.pop(store, None)


def replica(
    model: sinkstream.Model, location: SharedLocation, name: str, **more: Any
) -> Conversations:
    settings = {"seats": 1, "maintenance_s": STILL, "saved_early": 0, **more}
    opened = location.conversations(model, name, **settings)
    opened._snapshot_thread.close()  # snapshots are written when the test says so
    return opened


def owners(store: Store) -> Owners:
    """Return the owners of a store, as the replica that opened it sees them."""
    return _OWNERS[store]


def fence_of(conversations: Conversations) -> ReplicaFence:
    assert isinstance(conversations.fence, ReplicaFence)
    return conversations.fence


def claim_to(store: Store, conversation: str, epoch: int = 1) -> Claim:
    return Claim(owners(store), conversation, epoch)


def claimed(conversation: str, epoch: int) -> Claim:
    """Return what a claim must be equal to; of which replica it is does not matter."""
    nowhere: Any = SimpleNamespace(store=None, replica="")
    return Claim(nowhere, conversation, epoch)


def claim_of(store: Store, new: NewNode) -> Claim:
    """Return the claim of the replica in whose conversation a turn is the first."""
    return claim_to(store, new.conversation)


def finish(
    store: Store, new: NewNode, reply: list[int], mark: bytes, claim: Claim | None = None
) -> Node:
    """Write the end of a turn that has begun."""
    return stores.finish(store, new, reply, mark, claim or claim_of(store, new))


def contents(store: Store) -> dict[str, list[Any]]:
    """Return all rows of a store, but for who is alive, and for how long it was used."""
    found = {
        table: sorted(store.rows(f"SELECT * FROM {table}"), key=repr)
        for table in TABLES
        if table != "replicas"
    }
    found["meta"] = [row for row in found["meta"] if row[0] != SERVED]
    return found
