"""Three replicas on one store, in any order: delayed, repeated, crashed and wrongly suspected.

Whatever happens, each acknowledged turn is there, follows the one that its client had seen, and no
turn is committed with an old epoch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
    run_state_machine_as_test,
)

from sinkstream.server.conversations import recorder
from sinkstream.server.conversations.claim import SessionMoved
from sinkstream.server.conversations.node import Node
from sinkstream.server.conversations.store import Store
from sinkstream.server.conversations.store_error import StoreError
from tests.python.server.conversations.postgres import PostgresServer
from tests.python.server.conversations.sandbox import Begins, Replica, Replying, check_tree
from tests.python.server.conversations.stores import Place

NAMES = "ABC"
names = st.sampled_from(NAMES)
Opens = Callable[[str], Store]


@dataclass(eq=False)
class Client:
    """Somebody who talks, and knows what was acknowledged."""

    number: int
    seen: list[Node] = field(default_factory=list)
    messages: int = 0


def make_machine(opened: Callable[[], Opens]) -> type[RuleBasedStateMachine]:
    class Machine(RuleBasedStateMachine):
        clients = Bundle("clients")
        chosen = Bundle("chosen")
        replying = Bundle("replying")

        def __init__(self) -> None:
            super().__init__()
            self.open = opened()
            self.replicas = {name: Replica(self.open(name)) for name in NAMES}
            self.all_clients: list[Client] = []
            self.deleted: set[str] = set()  # conversations

        def teardown(self) -> None:
            for replica in self.replicas.values():
                replica.store.close()

        @property
        def reader(self) -> Store:
            return self.replicas["A"].store

        def is_alive(self, name: str, replica: Replica) -> bool:
            """Return whether it has not crashed since."""
            return self.replicas[name] is replica

        # ---- clients ----------------------------------------------------------------------------

        @rule(target=clients)
        def arrive(self) -> Client:
            self.all_clients.append(Client(len(self.all_clients)))
            return self.all_clients[-1]

        @rule(target=chosen, client=clients, name=names)
        def ask(self, client: Client, name: str) -> Any:
            """A request reaches a replica, which owns the conversation when this returns."""
            client.messages += 1
            replica = self.replicas[name]
            kept = [node for node in client.seen if node.conversation not in self.deleted]
            try:
                begins = replica.choose(
                    [node.hash for node in kept], f"{client.number}: {client.messages}"
                )
            except SessionMoved:
                return None
            if kept:
                assert begins.base == kept[-1], "an acknowledged turn is not continued"
            return name, replica, client, begins

        @rule(target=replying, one=consumes(chosen))
        def begin(self, one: Any) -> Any:
            if one is None or not self.is_alive(*one[:2]):
                return None
            name, replica, client, begins = one
            return name, replica, client, begins, replica.begin(begins)

        @rule(one=replying, count=st.integers(1, 4))
        def read(self, one: Any, count: int) -> None:
            if one is not None and one[4] in one[1].running and self.is_alive(*one[:2]):
                one[4].read(count)

        def ends(self, one: Any) -> None:
            """A reply ends, and is acknowledged if it is committed."""
            if one is None or not self.is_alive(*one[:2]) or one[4] not in one[1].running:
                return
            _, replica, client, begins, replying = one
            node = replica.end(replying)
            if node is None:
                return
            owner = self.reader.owner(node.conversation)
            assert owner is not None
            assert owner.epoch == begins.claim.epoch, "committed with an old epoch"
            self.acknowledged(client, begins, replying, node)

        def acknowledged(
            self, client: Client, begins: Begins, replying: Replying, node: Node
        ) -> None:
            assert node.parent == (begins.base and begins.base.id)
            ids = self.reader.ids_of(node.id).tolist()
            assert ids == [7, 7, *range(1, len(replying.text) + 1)]
            # Of two requests at the same time, the later one is a branch that the client leaves.
            if begins.base == (client.seen[-1] if client.seen else None):
                client.seen.append(node)

        @rule(one=replying)
        def end(self, one: Any) -> None:
            self.ends(one)

        @rule(one=replying, other=names, takes=st.booleans())
        def end_uncertainly(self, one: Any, other: str, takes: bool) -> None:
            """The connection is lost with the commit; meanwhile another replica may take over."""
            if one is None or not self.is_alive(*one[:2]) or one[4] not in one[1].running:
                return
            replica, session = one[1], one[3].claim.session

            def happens() -> None:
                if takes and self.replicas[other] is not replica:
                    self.replicas[other].ownership.own(session)

            while replica.writer.jobs:
                replica.writer.deliver()
            replica.writer.between = happens
            self.ends(one)
            replica.writer.between = None

        @rule(client=clients, name=names)
        def delete(self, client: Client, name: str) -> None:
            for session in {node.conversation for node in client.seen} - self.deleted:
                replica = self.replicas[name]
                claim = replica.ownership.own(session)
                if claim is None or replica.runs(session):
                    continue
                if replica.store.delete_conversation(claim).result():
                    self.deleted.add(session)

        # ---- replicas ---------------------------------------------------------------------------

        @rule(name=names, count=st.integers(1, 4))
        def deliver(self, name: str, count: int) -> None:
            writer = self.replicas[name].writer
            for _ in range(min(count, len(writer.jobs))):
                writer.deliver()

        @rule(name=names, other=names)
        def deliver_uncertainly(self, name: str, other: str) -> None:
            """A write is repeated, and others write in between."""
            writer, others = self.replicas[name].writer, self.replicas[other].writer
            if writer.jobs:
                writer.between = others.close if others is not writer else lambda: None
                writer.deliver()

        @rule(name=names)
        def crash(self, name: str) -> None:
            """All that was not delivered is lost; a new process of the same name begins."""
            old = self.replicas[name]
            old.writer.jobs.clear()
            self.replicas[name] = Replica(self.open(name))
            old.store._writer = _Ended()  # type: ignore[assignment]
            old.store.leave = lambda claims: None  # type: ignore[method-assign]
            old.store.close()

        @rule(name=names, other=names)
        def hand_over(self, name: str, other: str) -> None:
            """Another replica asks for all that this one has."""
            if name == other:
                return
            replica = self.replicas[name]
            for claim in replica.ownership.all():
                running = [one for one in replica.running if one.turn.conversation == claim.session]
                assert replica.release(claim.session)
                assert not any(one in replica.running for one in running)
                self.replicas[other].ownership.own(claim.session)

        @rule(name=names)
        def suspect(self, name: str) -> None:
            """Others believe that a replica is gone, rightly or not."""
            self.replicas[name].store._writer.submit(
                lambda connection: connection.execute(
                    "UPDATE replicas SET seen = 0 WHERE name = ?", [name]
                )
            ).result()

        @rule(name=names)
        def upkeep(self, name: str) -> None:
            """A replica says that it lives, and closes what others have left."""
            replica = self.replicas[name]
            replica.store.announce("")
            for session in replica.store.left_behind(name):
                replica.ownership.adopt(session)

        @rule(name=names, count=st.integers(1, 2))
        def sweep(self, name: str, count: int) -> None:
            """The oldest conversations are deleted, unless another living replica has them."""
            replica = self.replicas[name]
            for session, used in replica.store.oldest_conversations(1e12)[:count]:
                owner = replica.store.owner(session)
                claim = replica.ownership.adopt(session)
                if claim is None:
                    assert owner is None or owner.is_alive
                    continue
                if replica.runs(session):
                    continue
                try:
                    if replica.store.delete_conversation(claim, used).result():
                        self.deleted.add(session)
                except (SessionMoved, StoreError):
                    pass  # it was taken since

        # ---- what always holds ------------------------------------------------------------------

        @invariant()
        def every_acknowledged_turn_is_there(self) -> None:
            for client in self.all_clients:
                parent: Node | None = None
                for node in client.seen:
                    if node.conversation in self.deleted:
                        parent = None
                        continue
                    assert self.reader.node(node.id) == node
                    assert node.parent == (parent and parent.id), "the chain is not linear"
                    parent = node
            check_tree(self.reader)

    return Machine


class _Ended:
    """The writer of a process that is dead."""

    def close(self) -> None:
        pass


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
    monkeypatch.setattr(recorder, "_PART_TOKENS", 3)


@pytest.fixture
def folders(tmp_path: Path) -> Callable[[], Opens]:
    numbers = itertools.count()

    def opened() -> Opens:
        number = next(numbers)
        return Place(tmp_path / f"{number}", tmp_path / "snapshots").open

    return opened


def databases(postgres: PostgresServer, tmp_path: Path) -> Callable[[], Opens]:
    """Give an empty database each time: always the same one."""
    place = Place(postgres.new_database("machine"), tmp_path / "snapshots")

    def opened() -> Opens:
        postgres.sql("DROP SCHEMA IF EXISTS sinkstream CASCADE", "machine")
        return place.open

    return opened


def test_any_order_of_replicas_keeps_what_was_acknowledged(folders: Callable[[], Opens]) -> None:
    run(folders, 50, derandomize=True)


def test_any_order_of_replicas_on_postgres(postgres: PostgresServer, tmp_path: Path) -> None:
    run(databases(postgres, tmp_path), 6, derandomize=True)


@pytest.mark.slow
def test_a_thousand_orders_of_replicas(folders: Callable[[], Opens]) -> None:
    run(folders, 1000, derandomize=False)


@pytest.mark.slow
def test_a_hundred_orders_of_replicas_on_postgres(postgres: PostgresServer, tmp_path: Path) -> None:
    run(databases(postgres, tmp_path), 100, derandomize=False)
