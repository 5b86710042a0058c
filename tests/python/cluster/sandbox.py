"""Replicas without a model: real stores, claims and turns; replies, crashes and delays by hand.

Writes wait until they are delivered; a crash loses those that were not.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from sinkstream.cluster.owners import Claim, Owners
from sinkstream.cluster.replica_fence import ReplicaFence
from sinkstream.conversations.canonical import ReplyHash, beginning, hash_after
from sinkstream.conversations.database import Writer
from sinkstream.conversations.errors import SessionMoved, StoreError
from sinkstream.conversations.node import NewNode, Node, new_id
from sinkstream.conversations.residency import Residency, Resident
from sinkstream.conversations.running_turns import Begun, RunningTurn
from sinkstream.conversations.store import Store
from sinkstream.conversations.turns import TurnFacts

TENANT = "ada"
Jobs = list[tuple[Any, "Delivered"]]


class Delivered(Future[Any]):
    """Is done when the job is delivered; waiting for it delivers all jobs up to it."""

    def __init__(self, writer: ByHand) -> None:
        super().__init__()
        self._by = writer

    def result(self, timeout: float | None = None) -> Any:
        while not self.done():
            self._by.deliver()
        return super().result(timeout)


class ByHand:
    """Stands in for a store's `Writer`: does what is queued when told to."""

    def __init__(self, real: Writer) -> None:
        real.close()  # its thread; what it does with a job is used below
        self._real = real
        self.jobs: Jobs = []
        self.must_clean = False
        self.freed = real.freed
        self.between: Callable[[], None] | None = None
        """The next delivery loses its connection after the commit; then this happens, then the job
        is tried again."""

    def submit(self, job: Any) -> Delivered:
        done = Delivered(self)
        self.jobs.append((job, done))
        return done

    def try_submit(self, job: Any) -> Delivered:
        return self.submit(job)

    def deliver(self) -> None:
        """Do the oldest job."""
        job, done = self.jobs.pop(0)
        if self.between is not None:
            happens, self.between = self.between, None
            self._real._try([(job, Future())])
            happens()
        self._real._write([(job, done)])

    def close(self) -> None:
        while self.jobs:
            self.deliver()


class _Session:
    """Stands for a session in memory."""

    def __init__(self, tokens: int) -> None:
        self.stats = SimpleNamespace(tokens=tokens)

    def conclude_last_turn(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Stream:
    """Stands for a reply."""

    def __init__(self) -> None:
        self.record: Any = None
        self.stats = None
        self.thought_tokens = 0
        self.tool_calls: list[Any] = []
        self.reason = "length"

    def cancel(self) -> None:
        self.reason = "cancelled"

    def drain(self) -> str:
        return self.reason


@dataclass(eq=False)
class Begins:
    """A turn that a replica is about to begin."""

    base: Node | None
    claim: Claim
    before: bytes


@dataclass(eq=False)
class Replying:
    """A turn that is running."""

    turn: RunningTurn
    new: NewNode
    text: str = ""

    def read(self, count: int) -> None:
        """Receive a part of the reply."""
        ids = [len(self.text) + i + 1 for i in range(count)]
        self.text += "x" * count
        self.turn.stream.record(SimpleNamespace(text="x" * count, ids=ids))


class Replica:
    """A process; a crash is a new one on the same store."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.writer = store._writer = ByHand(store._writer)  # type: ignore[assignment]
        self.owners = Owners(store, name)
        self.ownership = ReplicaFence(self.owners)
        self.ownership._runs = self.runs  # type: ignore[method-assign]
        self.running: list[Replying] = []
        self.residency = Residency(1 << 20, lambda resident: None)
        self.owners.on_lost = self._lost
        self.owners.announce("")

    def runs(self, session: str) -> bool:
        return any(one.turn.conversation == session for one in self.running)

    def _lost(self, claim: Claim) -> None:
        self.ownership._forget(claim)
        for one in self.running:
            one.turn.lose(claim)

    def choose(self, hashes: list[bytes], message: str) -> Begins:
        """Find the turn that a client continues, and own its conversation."""
        start = beginning(self.store.secret, TENANT, "", "model")
        said = [{"role": "user", "content": message}]
        for _ in range(4):
            found = self.store.find(TENANT, hashes[::-1])
            if not found:
                claim = self.ownership.begin(new_id("sess"))
                return Begins(None, claim, hash_after(start, said))
            base = found[0]
            known = self.ownership.confirmed(base.conversation)
            if known is not None:
                return Begins(base, known, hash_after(base.hash, said))
            self.ownership.own(base.conversation)
        raise SessionMoved("")

    def begin(self, begins: Begins) -> Replying:
        """Begin the turn."""
        base, tokens = begins.base, 0 if begins.base is None else begins.base.tokens
        new = NewNode(
            id=new_id("resp"), parent=base and base.id, conversation=begins.claim.conversation,
            tenant=TENANT, session_key=None, read_ids=array("i", [7, 7]), messages="[]",
            before=begins.before, given="", tokens=tokens + 2,
        )  # fmt: skip
        resident = Resident(_Session(tokens), base)  # type: ignore[arg-type]
        self.residency.take_seat()
        self.residency.seat(resident)
        begun = Begun(new, begins.claim, resident, new.read_ids, base, tokens)
        facts = TurnFacts("resident", new.id, new.conversation, new.tokens, 0, 0)
        turn = RunningTurn(
            begun, _Stream(), facts, self.residency, self._ended  # type: ignore[arg-type]
        )  # fmt: skip
        replying = Replying(turn, new)
        self.running.append(replying)
        begins.claim.begin(new)
        return replying

    def _ended(self, turn: RunningTurn) -> None:
        self.running = [one for one in self.running if one.turn is not turn]

    def end(self, replying: Replying) -> Node | None:
        """Commit the turn; return it if it is acknowledged."""
        try:
            name = replying.turn.end().node
        except (SessionMoved, StoreError):
            return None
        return self.store.node(name) if name else None

    def release(self, session: str) -> bool:
        """Do what another replica asks for: end and commit the turns of a conversation."""

        def end_turns() -> bool:
            for one in list(self.running):
                if one.turn.conversation == session:
                    one.turn.hand_over()
                    self.end(one)
            return True

        return self.ownership.give_up(session, end_turns)


def check_tree(store: Store) -> None:
    """Check that each completed turn follows a completed one, and is what its parts say."""
    nodes = {row[0]: store.node(row[0]) for row in store.rows("SELECT id FROM nodes")}
    for name, node in nodes.items():
        if node is None:
            continue
        parent = nodes[node.parent] if node.parent is not None else None
        assert node.parent is None or parent is not None, "a turn follows one that is not there"
        before = parent.tokens if parent is not None else 0
        assert node.tokens == before + len(store.ids_of(name))
        ((stored,),) = store.rows("SELECT before FROM nodes WHERE id = ?", [name])
        reply = ReplyHash(stored)
        for (text,) in store.rows("SELECT text FROM parts WHERE node = ? ORDER BY number", [name]):
            reply.add(text.decode())
        assert node.hash == reply.digest()
    owners = {row[0] for row in store.rows("SELECT session FROM owners")}
    conversations = {row[0] for row in store.rows("SELECT id FROM conversations")}
    assert (
        owners == conversations == {row[0] for row in store.rows("SELECT conversation FROM nodes")}
    )
