"""Memory holds a fixed number of sessions; who gives up a seat, and what comes back."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import sinkstream
from sinkstream.conversations import residency
from sinkstream.conversations.conversations import Conversations
from sinkstream.conversations.open_store import Settings
from sinkstream.conversations.residency import Resident
from sinkstream.conversations.snapshots import Snapshots
from sinkstream.conversations.turns import TurnRequest
from sinkstream.errors import CapacityError
from tests.python.conversations.talk import (
    Chat,
    alone,
    ask,
    open_conversations,
    options,
    path_ids,
    user,
    wait_until,
)


def resident_nodes(conversations: Conversations) -> set[str]:
    residents = conversations._restorer.residency.all()
    return {one.node.id for one in residents if one.node is not None}


def begin(conversations: Conversations, text: str, **request: object) -> object:
    return conversations.begin(
        TurnRequest("", [user(text)], options(1, 100_000), **request)  # type: ignore[arg-type]
    )


def test_a_new_conversation_takes_the_seat_of_the_least_recently_used(
    conversations: Conversations,
) -> None:
    first, second, third = (ask(conversations, [user(text)]).node for text in "abc")
    assert resident_nodes(conversations) == {first, second, third}
    fourth = ask(conversations, [user("d")]).node
    assert resident_nodes(conversations) == {second, third, fourth}


def test_a_conversation_of_many_turns_survives_a_thousand_others(
    conversations: Conversations,
) -> None:
    chat = Chat(conversations)
    chat.say("One")
    head = chat.say("Two").node
    for i in range(200):
        ask(conversations, [user(f"Title of {i}")], store=i % 2 == 0, tokens=1)
    assert head in resident_nodes(conversations)
    assert chat.say("Three").facts.state == "resident"


def test_what_is_not_stored_gives_up_its_seat_first(conversations: Conversations) -> None:
    stored = ask(conversations, [user("a")]).node
    aside = ask(conversations, [user("b")], store=False).node
    other = ask(conversations, [user("c")]).node
    assert resident_nodes(conversations) == {stored, aside, other}
    last = ask(conversations, [user("d")]).node
    assert resident_nodes(conversations) == {stored, other, last}


def test_when_all_seats_run_the_next_is_refused_at_once(conversations: Conversations) -> None:
    turns = [conversations.begin(TurnRequest("", [user(t)], options(1, 10**5))) for t in "abc"]
    began = time.monotonic()
    with pytest.raises(CapacityError, match="all 3 sequences are running"):
        ask(conversations, [user("d")])
    with pytest.raises(CapacityError), conversations.room():
        pass
    assert time.monotonic() - began < 5
    turns[0].stream.close()
    turns[0].end()
    ask(conversations, [user("d")])
    for turn in turns[1:]:
        turn.stream.close()
        turn.end()


def test_room_for_others_parks_a_session_and_gives_the_seat_back(
    model: sinkstream.Model, tmp_path: Path
) -> None:
    seats = model.capacity.max_sequences
    conversations = open_conversations(model, tmp_path, seats=seats)
    nodes = [ask(conversations, [user(f"{i}")]).node for i in range(seats)]
    with conversations.room():
        assert resident_nodes(conversations) == set(nodes[1:])
        assert model.generate([5, 6, 7], **options(1)).finish_reason == "length"
    ask(conversations, [user("more")])
    assert len(resident_nodes(conversations)) == seats
    conversations.close()


def test_memory_that_others_hold_is_taken_from_idle_sessions(
    model: sinkstream.Model, tmp_path: Path
) -> None:
    """A request that did not ask for room is running; no turn is refused for it."""
    seats = model.capacity.max_sequences
    conversations = open_conversations(model, tmp_path, seats=seats)
    with model.session(sinks=3), model.session(sinks=2):
        for i in range(seats):
            reply = ask(conversations, [user(f"{i}")], seed=1)
        assert len(resident_nodes(conversations)) < seats
    assert reply.bits == alone(model, path_ids(conversations, reply.node)[:-8], 1)
    conversations.close()


def test_an_idle_session_is_parked_after_its_time(model: sinkstream.Model, tmp_path: Path) -> None:
    conversations = open_conversations(model, tmp_path, park_s=0.0, replay_tokens=0)
    chat = Chat(conversations)
    for i in range(10):
        chat.say(f"Message {i}", seed=i)
        if i % 3 == 2:
            conversations._maintenance.run()
            assert resident_nodes(conversations) == set()
    assert conversations._store.usage().snapshots > 0
    assert chat.say("Last", seed=99).facts.state in ("loaded", "resident")
    conversations.close()


def test_a_short_conversation_is_parked_without_a_file(
    model: sinkstream.Model, tmp_path: Path
) -> None:
    conversations = open_conversations(model, tmp_path, park_s=0.0, replay_tokens=1000)
    chat = Chat(conversations)
    chat.say("One")
    conversations._maintenance.run()
    assert conversations._store.usage().snapshots == 0
    assert chat.say("Two").facts.state == "replayed"
    conversations.close()


def test_a_conversation_gets_a_snapshot_while_it_grows(
    model: sinkstream.Model, tmp_path: Path
) -> None:
    conversations = open_conversations(model, tmp_path, snapshot_tokens=100)
    chat = Chat(conversations)
    saved = []
    for i in range(20):
        chat.say(f"Message {i}", seed=i)
        conversations._maintenance.run()
        saved.append(len(list(conversations._store.oldest_snapshots())))
    assert saved[0] == 0
    assert saved[-1] == 2  # of one conversation, no more are kept
    files = [path for path in (tmp_path / "snapshots").rglob("*") if path.is_file()]
    assert len(files) == 2
    assert chat.say("Last").facts.state == "resident"  # it stays in memory
    conversations.close()


def test_a_conversation_without_a_pause_gets_a_snapshot_for_each_window(
    model: sinkstream.Model, tmp_path: Path
) -> None:
    conversations = open_conversations(
        model, tmp_path, has_saver=True, snapshot_tokens=100, replay_tokens=10**6
    )
    store = conversations._store
    chat = Chat(conversations)
    node = store.node(chat.say("First").node)
    counts = set()
    for i in range(30):
        reply = chat.say(f"Message {i}", seed=i)
        assert reply.facts.state == "resident"
        assert node is not None
        assert node.tokens - store.saved_tokens(node.id) < 100
        counts.add(store.saved_tokens(node.id))
        node = store.node(reply.node)
    assert node is not None
    assert 3 < len(counts) <= 1 + node.tokens // 100
    conversations.close()


def test_a_turn_waits_for_a_snapshot_that_is_due(
    model: sinkstream.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversations = open_conversations(model, tmp_path, has_saver=True, snapshot_tokens=1)
    snapshots, events = conversations._restorer.snapshots, []

    def slow_save(resident: Resident) -> None:
        time.sleep(0.2)
        Snapshots.save(snapshots, resident)
        events.append("saved")

    monkeypatch.setattr(snapshots, "save", slow_save)
    chat = Chat(conversations)
    for _ in range(3):
        assert chat.say("More").facts.state in ("new", "resident")
        events.append("turn")
    conversations.close()
    assert events[:5] == ["turn", "saved", "turn", "saved", "turn"]


def test_a_turn_does_not_wait_for_long_until_others_are_saved(
    model: sinkstream.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residency, "_SAVER_S", 0.1)
    conversations = open_conversations(model, tmp_path, has_saver=True, snapshot_tokens=1)
    snapshots, may_end = conversations._restorer.snapshots, threading.Event()
    saves = []

    def slow_save(resident: Resident) -> None:
        saves.append(resident)
        assert may_end.wait(60)
        Snapshots.save(snapshots, resident)

    monkeypatch.setattr(snapshots, "save", slow_save)
    ask(conversations, [user("The saver is busy with this one")])
    wait_until(lambda: saves)
    chat = Chat(conversations)
    chat.say("Another")
    assert chat.say("More").facts.state == "resident"
    assert len(saves) == 1
    may_end.set()
    conversations.close()


@pytest.mark.parametrize("how", ["deleted", "parked"])
def test_a_session_that_leaves_does_not_wait_for_the_saver(
    model: sinkstream.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    conversations = open_conversations(
        model, tmp_path, has_saver=True, snapshot_tokens=1, replay_tokens=0
    )
    snapshots, may_end = conversations._restorer.snapshots, threading.Event()
    saves: list[str] = []

    def save(resident: Resident) -> None:
        saves.append(threading.current_thread().name)
        assert saves[-1] != "sinkstream-saver" or may_end.wait(60)
        Snapshots.save(snapshots, resident)

    monkeypatch.setattr(snapshots, "save", save)
    ask(conversations, [user("The saver is busy with this one")])
    wait_until(lambda: saves)
    other = ask(conversations, [user("Another")])
    if how == "deleted":
        conversations.delete("", other.facts.session)
        assert len(saves) == 1
    else:
        assert conversations._running.hand_over(other.facts.session, 0.2)
        assert conversations._store.snapshot_of(other.node)
    assert not may_end.is_set()
    may_end.set()
    conversations.close()


def test_all_are_parked_once_they_are_saved(
    model: sinkstream.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversations = open_conversations(model, tmp_path, has_saver=True, snapshot_tokens=1)
    snapshots, is_saving = conversations._restorer.snapshots, threading.Event()

    def save(resident: Resident) -> None:
        is_saving.set()
        time.sleep(0.2)
        Snapshots.save(snapshots, resident)

    monkeypatch.setattr(snapshots, "save", save)
    node = ask(conversations, [user("One")]).node
    assert is_saving.wait(30)
    conversations._restorer.residency.park_all()
    assert resident_nodes(conversations) == set()
    assert conversations._store.snapshot_of(node)
    conversations.close()


def test_a_snapshot_that_cannot_be_written_delays_no_turn(
    model: sinkstream.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversations = open_conversations(model, tmp_path, has_saver=True, snapshot_tokens=1)
    tries = []

    def full(resident: Resident) -> None:
        tries.append(resident.node)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(conversations._restorer.snapshots, "save", full)
    chat = Chat(conversations)
    began = time.monotonic()
    for _ in range(4):
        assert chat.say("More").facts.state in ("new", "resident")
    assert time.monotonic() - began < 10
    assert len(tries) >= 3
    assert len(set(map(id, tries))) == len(tries)  # once for each turn
    conversations.close()


def test_turns_do_not_wait_once_nothing_is_saved(model: sinkstream.Model, tmp_path: Path) -> None:
    conversations = open_conversations(model, tmp_path, has_saver=True, snapshot_tokens=1)
    conversations._snapshot_thread.close()
    chat = Chat(conversations)
    began = time.monotonic()
    for _ in range(3):
        assert chat.say("More").facts.state in ("new", "resident")
    assert time.monotonic() - began < 10
    conversations.close()


def test_upkeep_leaves_running_turns_alone(model: sinkstream.Model, tmp_path: Path) -> None:
    conversations = open_conversations(model, tmp_path, park_s=0.0, snapshot_tokens=0, ttl_s=0.0)
    turn = conversations.begin(TurnRequest("", [user("a")], options(1, 10**5)))
    next(turn.stream)
    conversations._maintenance.run()
    turn.stream.close()
    node = turn.end().node
    assert node in resident_nodes(conversations)
    conversations.close()


def test_a_request_waits_for_a_session_that_is_being_saved(conversations: Conversations) -> None:
    chat = Chat(conversations)
    chat.say("One")
    seats = conversations._restorer.residency
    (resident,) = seats.all()
    assert seats.keep(resident)
    assert not seats.keep(resident)
    timer = threading.Timer(0.2, seats.release, [resident])
    timer.start()
    assert chat.say("Two").facts.state == "resident"
    timer.join()


def talk_in_random_order(
    model: sinkstream.Model, store: Path, seats: int, count: int, turns: int
) -> None:
    """Let many clients talk in random order; none is refused, and each continues exactly."""
    source = random.Random(7)
    conversations = open_conversations(model, store, seats=seats)
    chats = [Chat(conversations) for _ in range(count)]
    order = [i for i in range(count) for _ in range(turns)]
    source.shuffle(order)
    for step, i in enumerate(order):
        reply = chats[i].say(f"I am {i}", seed=step, tokens=4)
        if step % 50 == 0:
            ids = path_ids(conversations, reply.node)[:-4]
            with conversations.room():
                assert reply.bits == alone(model, ids, step, 4)
        assert len(conversations._restorer.residency.all()) <= seats
    assert len({name for name, _ in conversations._store.conversations("")}) == count
    conversations.close()


def test_many_conversations_share_few_sequences(model: sinkstream.Model, tmp_path: Path) -> None:
    talk_in_random_order(model, tmp_path, 3, 40, 3)


@pytest.mark.slow
def test_ten_thousand_conversations_share_eight_sequences(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    with sinkstream.load(
        tiny_folder("llama"), sinks=4, window=60, threads=1, max_sequences=8
    ) as model:
        talk_in_random_order(model, tmp_path, 8, 10_000, 2)


def test_a_session_whose_snapshot_was_dropped_is_saved_again(
    model: sinkstream.Model, tmp_path: Path
) -> None:
    conversations = open_conversations(model, tmp_path, replay_tokens=0)
    states = conversations._restorer
    chat = Chat(conversations)
    for i in range(4):
        chat.say(f"Message {i}", seed=i)
    (resident,) = states.residency.all()
    assert states.snapshots.unsaved(resident) > 0
    states.snapshots.save(resident)
    assert resident.node is not None
    tokens = states.snapshots.unsaved(resident), resident.node.tokens
    assert tokens[0] == 0
    most = conversations._store.usage().transcripts + 1  # so that deleting the snapshot suffices
    conversations._maintenance._settings = Settings(max_bytes=most)
    conversations._maintenance.run()
    assert list(conversations._store.oldest_snapshots()) == []
    assert states.snapshots.unsaved(resident) == tokens[1]
    states.residency.park_idle()
    assert chat.say("Last", seed=9).facts.state == "loaded"
    conversations.close()


def test_an_earlier_snapshot_counts_when_a_later_one_is_dropped(
    model: sinkstream.Model, tmp_path: Path
) -> None:
    conversations = open_conversations(model, tmp_path)
    states = conversations._restorer
    chat = Chat(conversations)
    tokens = []
    for i in range(3):
        chat.say(f"Message {i}", seed=i)
        (resident,) = states.residency.all()
        assert resident.node is not None
        tokens.append(resident.node.tokens)
        if i < 2:
            states.snapshots.save(resident)
    assert states.snapshots.unsaved(resident) == tokens[2] - tokens[1]
    (_, _), (later, _) = conversations._store.oldest_snapshots()
    states.snapshots.drop_snapshot(later)
    assert states.snapshots.unsaved(resident) == tokens[2] - tokens[0]
    conversations.close()
