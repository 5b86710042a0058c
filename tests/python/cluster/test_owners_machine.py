"""Three replicas on one store, in any order: delayed, repeated, crashed and wrongly suspected.

Whatever happens, each acknowledged turn is there, follows the one that its client had seen, and no
turn is committed with an old epoch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sinkstream.conversations import running_turns
from sinkstream.conversations.errors import SessionMoved, StoreError
from sinkstream.conversations.node import Node
from sinkstream.conversations.store import Store
from tests.python.cluster.postgres import PostgresServer
from tests.python.cluster.sandbox import Begins, Replica, Replying, check_tree
from tests.python.cluster.shared_stores import SharedLocation

NAMES = "ABC"
TROUBLES = (
    "crash", "delete", "deliver_uncertainly", "hand_over", "suspect", "sweep", "upkeep",
)  # fmt: skip
names = st.sampled_from(NAMES)
Opens = Callable[[str], Store]


which = st.integers(0, 5)


@dataclass(eq=False)
class Client:
    """A client, which knows what was acknowledged."""

    number: int
    seen: list[Node] = field(default_factory=list)
    messages: int = 0


@dataclass(eq=False)
class Asked:
    """A request that a replica has accepted: it owns the conversation, or will find out."""

    replica: Replica
    client: Client
    begins: Begins
    replying: Replying | None = None


def make_machine(opened: Callable[[], Opens]) -> type[RuleBasedStateMachine]:
    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.open = opened()
            self.replicas = {name: Replica(self.open(name), name) for name in NAMES}
            self.clients = [Client(0), Client(1)]
            self.asked: list[Asked] = []
            self.deleted: set[str] = set()  # conversations
            self.epochs: dict[str, int] = {}  # of each turn's claim
            self.converse(0, "A", 2)

        def teardown(self) -> None:
            for replica in self.replicas.values():
                replica.store.close()

        @property
        def reader(self) -> Store:
            return self.replicas["A"].store

        # ---- clients ----------------------------------------------------------------------------

        @rule(client=which, name=names)
        def ask(self, client: int, name: str) -> None:
            """A request reaches a replica, which owns the conversation when this returns."""
            asks = self.clients[client % 2]
            asks.messages += 1
            replica = self.replicas[name]
            kept = [node for node in asks.seen if node.conversation not in self.deleted]
            begins = replica.choose([node.hash for node in kept], f"{asks.number}: {asks.messages}")
            if kept:
                assert begins.base == kept[-1], "an acknowledged turn is not continued"
            self.asked.append(Asked(replica, asks, begins))

        @precondition(lambda self: self.asked)
        @rule(one=which)
        def begin(self, one: int) -> None:
            asked = self.asked[one % len(self.asked)]
            if asked.replying is None:
                asked.replying = asked.replica.begin(asked.begins)
                self.epochs[asked.replying.new.id] = asked.begins.claim.epoch

        @precondition(lambda self: self.asked)
        @rule(one=which, count=st.integers(1, 4))
        def read(self, one: int, count: int) -> None:
            asked = self.asked[one % len(self.asked)]
            if asked.replying is not None and asked.replying in asked.replica.running:
                asked.replying.read(count)

        @precondition(lambda self: self.asked)
        @rule(one=which)
        def end(self, one: int) -> None:
            """A reply ends, and is acknowledged if it is committed."""
            asked = self.asked[one % len(self.asked)]
            if asked.replying is None:
                return
            self.asked.remove(asked)
            if asked.replying not in asked.replica.running:
                return  # it was handed over
            node = asked.replica.end(asked.replying)
            if node is not None:
                self.acknowledged(asked, node)

        def acknowledged(self, asked: Asked, node: Node) -> None:
            begins, replying, seen = asked.begins, asked.replying, asked.client.seen
            assert replying is not None
            owner = self.replicas["A"].owners.owner(node.conversation)
            assert owner is not None
            assert owner.epoch == begins.claim.epoch, "committed with an old epoch"
            assert node.parent == (begins.base and begins.base.id)
            ids = self.reader.ids_of(node.id).tolist()
            assert ids == [7, 7, *range(1, len(replying.text) + 1)]
            # Of two requests at the same time, the later one is a branch that the client leaves.
            kept = [each for each in seen if each.conversation not in self.deleted]
            if begins.base == (kept[-1] if kept else None):
                seen.append(node)

        @rule(client=which, name=names, count=st.integers(1, 4))
        def converse(self, client: int, name: str, count: int) -> None:
            """A whole turn, while those of others stall."""
            self.stall(client, name, count, delivers=False)
            self.end(0)

        @rule(client=which, name=names, count=st.integers(1, 9), delivers=st.booleans())
        def stall(self, client: int, name: str, count: int, delivers: bool) -> None:
            """A turn begins, and does not end yet."""
            self.ask(client, name)
            self.asked.insert(0, self.asked.pop())
            self.begin(0)
            self.read(0, count)
            if delivers:
                self.replicas[name].writer.close()

        @precondition(lambda self: self.asked)
        @rule(one=which, other=names, takes=st.booleans())
        def end_uncertainly(self, one: int, other: str, takes: bool) -> None:
            """The connection is lost with the commit; meanwhile another replica may take over."""
            asked = self.asked[one % len(self.asked)]
            replica, session = asked.replica, asked.begins.claim.conversation

            def happens() -> None:
                if takes and self.replicas[other] is not replica:
                    self.replicas[other].ownership.own(session)

            while replica.writer.jobs:
                replica.writer.deliver()
            replica.writer.between = happens
            self.end(one)
            replica.writer.between = None

        # ---- replicas ---------------------------------------------------------------------------

        @rule(name=names, count=st.integers(1, 4))
        def deliver(self, name: str, count: int) -> None:
            writer = self.replicas[name].writer
            for _ in range(min(count, len(writer.jobs))):
                writer.deliver()

        @rule(name=names, other=names, client=which, kind=st.sampled_from(TROUBLES))
        def trouble(self, kind: str, name: str, other: str, client: int) -> None:
            getattr(self, kind)(self.replicas[name], name, self.replicas[other], client % 2)

        def delete(self, replica: Replica, name: str, other: Replica, client: int) -> None:
            seen = self.clients[client].seen
            for session in {node.conversation for node in seen} - self.deleted:
                claim = replica.ownership.own(session)
                if claim is None or replica.runs(session):
                    continue
                try:
                    if claim.delete_all().result():
                        self.deleted.add(session)
                except (SessionMoved, StoreError):
                    pass

        def deliver_uncertainly(
            self, replica: Replica, name: str, other: Replica, client: int
        ) -> None:
            """A write is repeated, and others write in between."""
            if replica.writer.jobs:
                replica.writer.between = (
                    other.writer.close if other is not replica else lambda: None
                )
                replica.writer.deliver()

        def crash(self, replica: Replica, name: str, other: Replica, client: int) -> None:
            """All that was not delivered is lost; a new process of the same name begins."""
            replica.writer.jobs.clear()
            self.replicas[name] = Replica(self.open(name), name)
            self.asked = [asked for asked in self.asked if asked.replica is not replica]
            replica.store.close()

        def hand_over(self, replica: Replica, name: str, other: Replica, client: int) -> None:
            """Another replica asks for all that this one has."""
            if replica is other:
                return
            for session in list(replica.ownership._held):
                assert replica.release(session)
                # A turn whose claim was lost already can write nothing.
                left = [one.turn for one in replica.running if one.turn.conversation == session]
                assert all(turn._is_lost for turn in left)
                other.ownership.own(session)

        def suspect(self, replica: Replica, name: str, other: Replica, client: int) -> None:
            """Others believe that a replica has died, rightly or not."""
            replica.store._writer.submit(
                lambda connection: connection.execute(
                    "UPDATE replicas SET seen = 0 WHERE name = ?", [name]
                )
            ).result()

        def upkeep(self, replica: Replica, name: str, other: Replica, client: int) -> None:
            """A replica says that it lives, and closes what others have left."""
            replica.owners.announce("")
            for session in replica.owners.abandoned():
                replica.ownership.adopt(session)

        def sweep(self, replica: Replica, name: str, other: Replica, client: int) -> None:
            """The oldest conversation is deleted, unless another living replica owns it."""
            for session, tick in replica.store.expired_conversations(1e12)[:1]:
                owner = replica.owners.owner(session)
                claim = replica.ownership.adopt(session)
                if claim is None or replica.runs(session):
                    continue
                if owner is not None and owner.is_alive:
                    assert owner.replica.name == name, "taken from a living one"
                if claim.delete_all(tick).result():
                    self.deleted.add(session)

        # ---- what always holds ------------------------------------------------------------------

        @invariant()
        def every_acknowledged_turn_is_there(self) -> None:
            for client in self.clients:
                parent: Node | None = None
                for node in client.seen:
                    if node.conversation in self.deleted:
                        parent = None
                        continue
                    assert self.reader.node(node.id) == node
                    assert node.parent == (parent and parent.id), "the chain is not linear"
                    parent = node
            check_tree(self.reader)
            for name, epoch in self.reader.rows(
                "SELECT id, epoch FROM nodes JOIN owners ON session = conversation "
                "WHERE hash IS NULL"
            ):
                assert self.epochs[name] == epoch, "a turn of an earlier owner is not closed"

    return Machine


def run(opened: Callable[[], Opens], examples: int, *, derandomize: bool) -> None:
    run_state_machine_as_test(
        make_machine(opened),
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            derandomize=derandomize,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_turns, "_PART_TOKENS", 3)


@pytest.fixture
def folders(tmp_path: Path) -> Callable[[], Opens]:
    numbers = itertools.count()

    def opened() -> Opens:
        number = next(numbers)
        return SharedLocation(tmp_path / f"{number}", tmp_path / "snapshots").open

    return opened


def databases(postgres: PostgresServer, tmp_path: Path) -> Callable[[], Opens]:
    """Give an empty database each time: always the same one."""
    location = SharedLocation(postgres.new_database("machine"), tmp_path / "snapshots")

    def opened() -> Opens:
        postgres.sql("DROP SCHEMA IF EXISTS sinkstream CASCADE", "machine")
        return location.open

    return opened


def test_any_order_of_replicas_keeps_what_was_acknowledged(folders: Callable[[], Opens]) -> None:
    run(folders, 25, derandomize=True)


def test_any_order_of_replicas_on_postgres(postgres: PostgresServer, tmp_path: Path) -> None:
    run(databases(postgres, tmp_path), 6, derandomize=True)


@pytest.mark.slow
def test_a_thousand_orders_of_replicas(folders: Callable[[], Opens]) -> None:
    run(folders, 1000, derandomize=False)


@pytest.mark.slow
def test_a_hundred_orders_of_replicas_on_postgres(postgres: PostgresServer, tmp_path: Path) -> None:
    run(databases(postgres, tmp_path), 100, derandomize=False)
