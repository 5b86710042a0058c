"""Two replicas on one store: one stalls at any point, the other continues, and the first wakes up.

What the late one then writes never changes the conversation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import sinkstream
from sinkstream.cluster import owners
from sinkstream.conversations import running_turns
from sinkstream.conversations.conversations import Conversations
from sinkstream.conversations.errors import SessionMoved
from sinkstream.conversations.turn_starter import TurnStarter
from sinkstream.conversations.turns import TurnRequest
from sinkstream.errors import SessionBusy
from tests.python.cluster.shared_stores import (
    SharedLocation,
    claimed,
    contents,
    fence_of,
    replica,
)
from tests.python.conversations.stalling import WAIT_S, Late, Point, Stall
from tests.python.conversations.talk import (
    OPENED,
    Chat,
    Reply,
    alone,
    ask,
    options,
    path_ids,
    user,
)


def is_exact(
    model: sinkstream.Model, conversations: Conversations, reply: Reply, seed: int
) -> bool:
    ids = path_ids(conversations, reply.node)[: -len(reply.ids)]
    return reply.bits == alone(model, ids, seed, len(reply.ids))


TURNS: list[Point] = ["loaded", "begin", "part", "commit"]
OTHERS: list[Point] = ["note", "snapshot", "delete"]


@pytest.mark.parametrize("point", [*TURNS, *OTHERS])
def test_a_replica_that_wakes_up_late_changes_nothing(
    model: sinkstream.Model, location: SharedLocation, monkeypatch: pytest.MonkeyPatch, point: Point
) -> None:
    monkeypatch.setattr(running_turns, "_PART_TOKENS", 4)
    one = replica(model, location, "one", snapshot_tokens=0)
    two = replica(model, location, "two", snapshot_tokens=0)
    chat = Chat(one)
    first, second = (chat.say(f"{i}", seed=i) for i in range(2))
    session = second.facts.session
    works: dict[Point, Callable[[], Any]] = {
        "note": lambda: one.note(second.node, "late"),
        "snapshot": lambda: one._maintenance.run(),
        "delete": lambda: one.delete("", session),
    }
    stall = Stall(one, point)
    late_messages = [*chat.messages, user("From the first one")]
    late = Late(works.get(point, lambda: ask(one, late_messages, seed=5, tokens=40)))
    assert stall.reached.wait(WAIT_S)

    other = Chat(two, chat.messages)
    replies = [other.say(f"From the second one, {i}", seed=i) for i in range(2)]
    assert all(is_exact(model, two, reply, i) for i, reply in enumerate(replies))
    two._maintenance.run()
    before = contents(two._store)
    stall.goes_on.set()
    error = late.join()
    if point != "snapshot":  # upkeep only logs it
        assert isinstance(error, SessionMoved)
    fence_of(one).owners.leave()  # what was queued before is written now
    assert contents(two._store) == before
    nodes = [one for one in two._store.nodes_of(session) if one.finish_reason != "interrupted"]
    assert [node.parent for node in nodes] == [None, *(node.id for node in nodes[:-1])]
    assert is_exact(model, two, other.say("Go on", seed=7), 7)

    assert one.fence.held(session) is None
    again = Chat(one, other.messages).say("And here again", seed=8)  # it takes it back
    assert is_exact(model, one, again, 8)
    assert [first.node, second.node] == [node.id for node in nodes[:2]]


def test_a_replica_that_stalls_after_taking_takes_again(
    model: sinkstream.Model, location: SharedLocation
) -> None:
    one, two = replica(model, location, "one"), replica(model, location, "two")
    chat = Chat(two)
    chat.say("Hello")
    stall = Stall(one, "begin")  # reached below, by what takes the conversation
    take = fence_of(one).owners.take

    def stalls(session: str) -> Any:
        claim = take(session)
        stall.at("begin")
        return claim

    fence_of(one).owners.take = stalls  # type: ignore[method-assign]
    branch = Chat(one, chat.messages)
    late = Late(lambda: branch.say("From the first one", seed=5))
    assert stall.reached.wait(WAIT_S)
    reply = chat.say("From the second one", seed=1)
    session = reply.facts.session
    before = two._store.nodes_of(session)
    stall.goes_on.set()
    assert late.join() is None
    assert one.fence.held(session) == claimed(session, 4)
    assert two._store.nodes_of(session)[:2] == before
    replies = [Chat(one, each.messages).say("On", seed=2) for each in (branch, chat)]
    assert all(is_exact(model, one, each, 2) for each in replies)


@pytest.mark.parametrize("by", ["a planned end", "another replica"])
def test_a_conversation_whose_turn_is_starting_is_not_given_up(
    model: sinkstream.Model, location: SharedLocation, by: str
) -> None:
    one = replica(model, location, "one")
    chat = Chat(one)
    session = chat.say("Hello").facts.session
    claim = one.fence.held(session)
    stall = Stall(one, "loaded")
    late = Late(lambda: chat.say("On", seed=1))
    assert stall.reached.wait(WAIT_S)
    if by == "a planned end":
        fence_of(one).park_all()
    else:
        assert not fence_of(one).release(session)
    assert one.fence.held(session) == claim
    stall.goes_on.set()
    assert late.join() is None
    assert len(one._store.nodes_of(session)) == 2
    assert not one._running.writes(session)
    assert fence_of(one).release(session)


def test_a_turn_that_cannot_start_is_not_running(
    model: sinkstream.Model, location: SharedLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = replica(model, location, "one")
    chat = Chat(one)
    session = chat.say("Hello").facts.session

    def fails(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(TurnStarter, "_found", fails)
    with pytest.raises(OSError):  # noqa: PT011
        chat.say("On")
    assert not one._running.writes(session)


def test_a_stream_ends_when_a_part_of_it_cannot_be_written(
    model: sinkstream.Model, location: SharedLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It need not wait for the end of the reply, which may be far away."""
    monkeypatch.setattr(running_turns, "_PART_TOKENS", 4)
    one, two = replica(model, location, "one"), replica(model, location, "two")
    chat = Chat(one)
    chat.say("Hello")
    request = TurnRequest("", [*chat.messages, user("Endlessly")], options(1, 1 << 40))
    turn = one.begin(request)
    next(turn.stream)
    reply = Chat(two, chat.messages).say("Not here", seed=3)
    for _ in turn.stream:
        pass
    assert turn.stream.finish_reason == "cancelled"
    with pytest.raises(SessionMoved, match=reply.facts.session):
        turn.end()
    assert one._restorer.residency.all() == []
    assert one._running.all() == []
    assert is_exact(model, two, reply, 3)


def test_a_replica_that_is_asked_saves_what_it_has(
    model: sinkstream.Model, location: SharedLocation
) -> None:
    one, two = replica(model, location, "one", replay_tokens=0), replica(model, location, "two")
    fence_of(two).ask = lambda replica, session: (
        replica.name == "one" and fence_of(one).release(session)
    )
    chat = Chat(one)
    for i in range(3):
        chat.say(f"{i}", seed=i)
    chat.conversations = two
    reply = chat.say("Here now", seed=4)
    assert reply.facts.state == "loaded"
    assert is_exact(model, two, reply, 4)
    assert one._restorer.residency.all() == []
    assert fence_of(one).owner_of(reply.node) == fence_of(one).owner_of(reply.facts.session)
    owner = fence_of(one).owner_of(reply.node)
    assert owner is not None
    assert owner.name == "two"
    assert fence_of(two).owner_of(reply.node) is None


@pytest.mark.parametrize("ends", [True, False])
def test_a_turn_that_is_running_ends_before_its_conversation_is_released(
    model: sinkstream.Model, location: SharedLocation, ends: bool
) -> None:
    one, two = replica(model, location, "one"), replica(model, location, "two")
    chat = Chat(one)
    chat.say("Hello")
    tokens = 8 if ends else 1 << 40
    turn = one.begin(TurnRequest("", [*chat.messages, user("More")], options(1, tokens)))
    text = next(turn.stream)
    outcomes: list[Any] = []

    def read() -> None:
        for piece in turn.stream:
            outcomes.append(piece)
        try:
            outcomes.append(turn.end())
        except SessionMoved as error:
            outcomes.append(error)

    reading = threading.Thread(target=read)
    reading.start()
    assert fence_of(one).release(turn.facts.session, within_s=20 if ends else 1)
    reading.join()
    assert isinstance(outcomes[-1], SessionMoved) is not ends
    if not ends:
        with pytest.raises(SessionMoved):  # once more
            turn.end()
    node = one._store.node(turn.facts.node)
    assert node is not None
    assert node.finish_reason == ("length" if ends else "cancelled")
    said = text + "".join(outcomes[:-1])
    other = Chat(two, [*chat.messages, user("More"), {"role": "assistant", "content": said}])
    reply = other.say("On", seed=2)
    assert two._store.node(reply.node).parent == node.id  # type: ignore[union-attr]
    assert is_exact(model, two, reply, 2)


def test_a_turn_of_a_dead_owner_is_continued_from_what_was_written(
    model: sinkstream.Model, location: SharedLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_turns, "_PART_TOKENS", 4)
    one, two = replica(model, location, "one"), replica(model, location, "two")
    turn = one.begin(TurnRequest("", [user("Endlessly")], options(1, 1 << 40)))
    name = turn.facts.node
    while not two._store.rows("SELECT 1 FROM parts WHERE node = ?", [name]):
        next(turn.stream)
    with pytest.raises(SessionBusy, match="is running"):
        ask(two, [user("On")], previous=name)
    with pytest.raises(SessionBusy):
        two.text_of("", name)
    with pytest.raises(SessionBusy):
        two.delete("", turn.facts.session)
    monkeypatch.setattr(owners, "GONE_S", -1.0)
    reply = ask(two, [user("On")], previous=name, seed=2)
    assert is_exact(model, two, reply, 2)
    assert two.text_of("", name).finish_reason == "interrupted"
    with pytest.raises(SessionMoved):
        turn.end()


def test_upkeep_closes_what_dead_replicas_have_left(
    model: sinkstream.Model, location: SharedLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_turns, "_PART_TOKENS", 4)
    one, two = replica(model, location, "one"), replica(model, location, "two")
    turn = one.begin(TurnRequest("", [user("Endlessly")], options(1, 1 << 40)))
    while not two._store.rows("SELECT 1 FROM parts"):
        next(turn.stream)
    two._maintenance.run()
    assert two._store.node(turn.facts.node) is None
    monkeypatch.setattr(owners, "GONE_S", -1.0)
    two._maintenance.run()
    node = two._store.node(turn.facts.node)
    assert node is not None
    assert node.finish_reason == "interrupted"


def test_a_sweep_deletes_only_what_no_other_replica_uses(
    model: sinkstream.Model, location: SharedLocation
) -> None:
    one = replica(model, location, "one")
    two = replica(model, location, "two", ttl_s=0.0, max_conversations=0, max_bytes=0)
    theirs, own = Chat(one).say("Theirs"), Chat(two).say("Own")
    one._maintenance.run()
    two._maintenance.run()
    assert [name for name, _ in two._store.conversations("")] == [theirs.facts.session]
    assert fence_of(two).owners.owner(own.facts.session) is None
    fence_of(one).park_all()  # now it has no owner
    two._maintenance.run()
    assert two._store.conversations("") == []


def test_what_another_replica_has_continued_leaves_memory(
    model: sinkstream.Model, location: SharedLocation
) -> None:
    one, two = replica(model, location, "one"), replica(model, location, "two")
    chat = Chat(one)
    reply = chat.say("Hello")
    Chat(two, chat.messages).say("Elsewhere", seed=1)
    with pytest.raises(SessionMoved):
        one.note(reply.node, "late")
    one._maintenance.run()
    assert one._restorer.residency.all() == []
    assert len(two._restorer.residency.all()) == 1


def test_closing_a_replica_gives_its_conversations_up(
    model: sinkstream.Model, location: SharedLocation
) -> None:
    one, two = replica(model, location, "one", replay_tokens=0), replica(model, location, "two")
    fence_of(two).ask = lambda replica, session: pytest.fail("asked")
    chat = Chat(one)
    for i in range(2):
        chat.say(f"{i}", seed=i)
    OPENED.remove(one)
    one.close()
    chat.conversations = two
    reply = chat.say("On", seed=3)
    assert reply.facts.state == "loaded"
    assert is_exact(model, two, reply, 3)
