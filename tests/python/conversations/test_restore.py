"""A turn in memory, in a file, as ids or as messages: its next reply has the same bits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import sinkstream
from sinkstream.conversations.conversations import Conversations
from sinkstream.conversations.errors import StateLost, StoreError
from sinkstream.conversations.turns import NotFound, TurnRequest
from sinkstream.errors import InvalidArgument
from sinkstream.sessions.token_session import TokenSession
from tests.python.conversations.talk import (
    CAPACITY,
    Chat,
    Reply,
    alone,
    ask,
    forget,
    letters,
    open_conversations,
    options,
    path_ids,
    user,
)
from tests.python.server.http.stopped_engine import stopped_engine

FAR = 24  # turns: ten windows


@pytest.mark.parametrize("turns", [1, 3, FAR])
def test_resident_loaded_replayed_and_fresh_are_the_same_bits(
    model: sinkstream.Model, tmp_path: Path, turns: int
) -> None:
    only = {"logit_bias": letters(model)}  # so that the reply's text has the ids that it had
    found: dict[str, Reply] = {}
    for way in ("resident", "loaded", "replayed", "new"):
        conversations = open_conversations(model, tmp_path / way)
        chat = Chat(conversations)
        for i in range(turns):
            chat.say(f"Message {i} of many", seed=i, sampling=only)
        if way in ("loaded", "replayed"):
            forget(conversations, snapshots=way == "loaded")
        if way == "new":
            conversations.close()
            conversations = open_conversations(model, tmp_path / "another")
            chat = chat.branch(chat.messages)
            chat.conversations = conversations
        found[way] = chat.say("The last", seed=99, tokens=20, sampling=only)
        ids = path_ids(conversations, found[way].node)
        assert found[way].bits == alone(model, ids[:-20], 99, 20, **only)
        conversations.close()
    assert [reply.facts.state for reply in found.values()] == list(found)
    assert len({str(reply.bits) for reply in found.values()}) == 1
    assert len({reply.facts.prompt_tokens for reply in found.values()}) == 1
    assert found["resident"].facts.prompt_tokens > (10 * CAPACITY if turns == FAR else 0)
    new, replayed = found["new"].facts, found["replayed"].facts
    assert new.cached_tokens == new.replayed_tokens == replayed.cached_tokens == 0
    assert found["loaded"].facts.cached_tokens == found["resident"].facts.cached_tokens
    assert replayed.replayed_tokens == found["resident"].facts.cached_tokens


def test_a_replay_begins_at_the_nearest_snapshot(
    model: sinkstream.Model, conversations: Conversations
) -> None:
    chat = Chat(conversations)
    for i in range(6):
        chat.say(f"Message {i}", seed=i)
    forget(conversations, snapshots=True)
    before = chat.say("Saved before", seed=6)
    forget(conversations, snapshots=False)
    replayed_all = chat.branch(chat.messages).say("Next", seed=7)
    forget(conversations, snapshots=True)  # of "Next"
    chat = chat.branch([*chat.messages, user("Next")])
    chat.messages.append({"role": "assistant", "content": replayed_all.text})
    later = chat.say("Later", seed=8)
    assert later.facts.state == "loaded"
    forget_sessions_only(conversations)
    last = chat.say("Last", seed=9)
    assert last.facts.state == "replayed"
    assert (
        last.facts.replayed_tokens == later.facts.prompt_tokens - replayed_all.facts.prompt_tokens
    )
    assert before.facts.prompt_tokens < replayed_all.facts.replayed_tokens
    assert last.bits == alone(model, path_ids(conversations, last.node)[:-8], 9)


def forget_sessions_only(conversations: Conversations) -> None:
    for resident in conversations._restorer.residency.all():
        conversations._restorer.residency.discard(resident)


def test_a_reply_is_undone_while_nothing_has_left_the_window(
    model: sinkstream.Model, conversations: Conversations
) -> None:
    chat = Chat(conversations)
    chat.say("A", tokens=2)
    first = chat.say("B", tokens=2, seed=1)
    again = chat.branch(chat.messages[:2]).say("B", tokens=2, seed=1)
    assert again.facts.state == "undone"
    assert again.bits == first.bits
    assert again.facts.cached_tokens == first.facts.cached_tokens


def test_a_reply_is_regenerated_far_past_the_window(
    model: sinkstream.Model, conversations: Conversations
) -> None:
    chat = Chat(conversations)
    for i in range(FAR):
        chat.say(f"Message {i}", seed=i)
    first = chat.say("Last", seed=50)
    again = chat.branch(chat.messages[:-2]).say("Last", seed=50)
    assert again.facts.state == "replayed"
    assert again.bits == first.bits
    assert chat.say("On", seed=51).facts.state == "resident"  # the first one is still in memory


def test_a_turn_before_a_resident_one_is_forked_from(
    model: sinkstream.Model, conversations: Conversations
) -> None:
    """While another turn of its conversation is running, a turn comes from elsewhere."""
    chat = Chat(conversations)
    for i in range(4):
        first = chat.say(f"Message {i}", seed=i)
    running = conversations.begin(
        TurnRequest("", [*chat.messages, user("Next")], options(1, 100_000))
    )
    second = ask(conversations, [user("Next")], previous=first.node, seed=2)
    assert second.facts.state == "replayed"
    running.stream.close()
    running.end()
    assert second.bits == alone(model, path_ids(conversations, second.node)[:-8], 2)


def test_a_turn_cancelled_while_it_was_read_continues_there(
    model: sinkstream.Model, conversations: Conversations
) -> None:
    chat = Chat(conversations)
    for i in range(6):
        last = chat.say(f"Message {i}", seed=i)
    long = user("word " * 4000)
    for _ in range(2):
        turn = conversations.begin(TurnRequest("", [*chat.messages, long], options(7)))
        for event in turn.stream.events():
            if isinstance(event, sinkstream.Prefill) and event.done > 2 * CAPACITY:
                break
        turn.stream.cancel()
        assert turn.end().node == ""
    reply = ask(conversations, [*chat.messages, long], seed=7)
    assert reply.facts.state == "resident"
    assert reply.facts.cached_tokens > last.facts.prompt_tokens + 8
    assert reply.bits == alone(model, path_ids(conversations, reply.node)[:-8], 7)


def test_what_is_not_stored_is_not_continued_after_half_of_another_message(
    conversations: Conversations,
) -> None:
    """A session that has read a part of one message cannot continue with another."""
    name = ask(conversations, [user("One")], store=False).node
    for i in range(6):
        name = ask(conversations, [user(f"Message {i}")], store=False, previous=name).node
    long = TurnRequest("", [user("word " * 4000)], options(7), previous=name, store=False)
    turn = conversations.begin(long)
    for event in turn.stream.events():
        if isinstance(event, sinkstream.Prefill) and event.done > 2 * CAPACITY:
            break
    turn.stream.cancel()
    assert turn.end().node == ""
    with pytest.raises(NotFound):
        ask(conversations, [user("Other")], store=False, previous=name)


def test_what_is_not_stored_is_forked_if_that_is_asked_for(conversations: Conversations) -> None:
    name = ask(conversations, [user("One")], store=False).node
    for i in range(conversations._host.options.max_sequences):  # all seats are taken
        ask(conversations, [user(f"Other {i}")])
    name = ask(conversations, [user("One")], store=False).node
    fork = ask(conversations, [user("Two")], store=False, previous=name, forks=True, seed=3)
    moved = ask(conversations, [user("Two")], store=False, previous=name, seed=3)
    assert fork.bits == moved.bits
    assert fork.facts.state == moved.facts.state == "resident"
    with pytest.raises(NotFound):
        ask(conversations, [user("Two")], store=False, previous=name)


@pytest.mark.parametrize("failing", ["session", "store"])
def test_a_session_whose_turn_cannot_be_undone_is_closed(
    conversations: Conversations, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """It would keep its sequence forever."""
    chat = Chat(conversations)
    chat.say("A", tokens=2)
    first = chat.say("B", tokens=2, seed=1)

    def fail(*_: object, **__: object) -> None:
        raise StoreError("no")

    if failing == "session":
        monkeypatch.setattr(TokenSession, "go_back", fail)
    else:
        monkeypatch.setattr(conversations._store, "saved_tokens", fail)
    branch = chat.branch(chat.messages[:2])
    with pytest.raises(StoreError, match="no"):
        branch.say("B", tokens=2, seed=1)
    monkeypatch.undo()
    assert all(one.state == "idle" for one in conversations._restorer.residency.all())
    again = chat.branch(chat.messages[:2]).say("B", tokens=2, seed=1)
    assert again.bits == first.bits


def test_a_turn_cancelled_before_it_began_leaves_the_session_as_it_was(
    model: sinkstream.Model, conversations: Conversations
) -> None:
    chat = Chat(conversations)
    chat.say("One")
    turn = conversations.begin(TurnRequest("", [*chat.messages, user("Two")], options(1)))
    turn.stream.close()
    turn.end()  # either way: taken back, or a reply of some tokens
    reply = chat.say("Other", seed=2)
    assert reply.facts.state in ("resident", "undone")
    assert reply.bits == alone(model, path_ids(conversations, reply.node)[:-8], 2)


@pytest.mark.parametrize("reason", ["stop_string", "stop", "length", "empty"])
def test_every_ending_goes_on_exactly(
    model: sinkstream.Model, conversations: Conversations, reason: str
) -> None:
    chat = Chat(conversations)
    probe = chat.say("Probe", tokens=60)
    chat = Chat(conversations)
    ways = {
        "stop_string": {"stop": [probe.text[10]]},
        "stop": {"stop_token_ids": [probe.ids[10]]},
        "length": {},
        "empty": {"max_tokens": 0},
    }
    first = chat.say("Probe", tokens=60, sampling=ways[reason])
    second = chat.say("Next", seed=1)
    assert second.facts.state == "resident"
    assert second.facts.prompt_tokens - second.facts.cached_tokens > 0
    assert len(first.ids) == {"length": 60, "empty": 0}.get(reason, len(first.ids))
    assert second.bits == alone(model, path_ids(conversations, second.node)[:-8], 1)


def test_a_replay_beyond_the_limit_is_refused_with_the_count(
    model: sinkstream.Model, tmp_path: Path
) -> None:
    conversations = open_conversations(model, tmp_path, max_replay=100)
    chat = Chat(conversations)
    for i in range(8):
        chat.say(f"Message {i}", seed=i)
    forget(conversations, snapshots=False)
    with pytest.raises(StateLost, match="at most 100 tokens after the nearest saved state"):
        chat.branch(chat.messages).say("Next")
    conversations.close()


def test_a_refused_option_leaves_the_session(conversations: Conversations) -> None:
    chat = Chat(conversations)
    chat.say("One")
    for sampling in ({"temperature": -1.0}, {"top_p": 0}):
        with pytest.raises(InvalidArgument):
            chat.branch(chat.messages).say("Two", sampling=sampling)
    assert chat.say("Two").facts.state == "resident"


def test_threads_may_begin_and_end_turns(
    model: sinkstream.Model, tmp_path: Path, tiny_folder: Callable[[str], Path]
) -> None:
    conversations = open_conversations(model, tmp_path)
    failures: list[BaseException] = []
    finished: list[Chat] = []

    def talk(number: int) -> None:
        try:
            chat = Chat(conversations)
            for i in range(6):
                chat.say(f"I am {number}, {i}", seed=i)
            finished.append(chat)
        except BaseException as error:
            failures.append(error)

    # As many as there are seats: none is refused.
    threads = [threading.Thread(target=talk, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for chat in finished:
        reply = chat.say("Last", seed=9)
        assert reply.bits == alone(model, path_ids(conversations, reply.node)[:-8], 9)
    conversations.close()


def test_a_turn_is_not_undone_after_one_that_was_cancelled_before_it_was_read(
    model: sinkstream.Model, tmp_path: Path
) -> None:
    conversations = open_conversations(model, tmp_path)
    has_node = True
    while has_node:  # the engine may have been faster
        chat = Chat(conversations)
        chat.say("One", seed=1)
        before = chat.messages
        chat.say("Two", seed=2)
        with stopped_engine(model):
            request = TurnRequest("", [*chat.messages, user("Three")], options(5))
            turn = conversations.begin(request)
            turn.stream.cancel()
        has_node = turn.end().node != ""
    again = chat.branch(before).say("Another", seed=3)
    assert again.bits == alone(model, path_ids(conversations, again.node)[:-8], 3)
