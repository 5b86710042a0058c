"""Which turn a request continues: by its messages, or by an id; never by likeness."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream.conversations.conversations import Conversations
from sinkstream.conversations.plain_turns import PlainTurns
from sinkstream.conversations.turns import NotFound, TurnRequest
from sinkstream.errors import InvalidArgument, SessionBusy
from sinkstream.request.template_variables import with_variables
from tests.python.conversations.talk import (
    Chat,
    alone,
    ask,
    assistant,
    open_conversations,
    options,
    path_ids,
    user,
)  # fmt: skip
from tests.python.text.reasoning_templates import write_folder


def parent(conversations: Conversations, node_id: str) -> str | None:
    node = conversations._store.node(node_id)
    assert node is not None
    return node.parent


def test_a_resent_history_continues_its_last_turn(conversations: Conversations) -> None:
    chat = Chat(conversations)
    replies = [chat.say(f"Message {i}", seed=i) for i in range(4)]
    assert [reply.facts.state for reply in replies] == ["new", *["resident"] * 3]
    assert len({reply.facts.session for reply in replies}) == 1
    nodes: list[str | None] = [reply.node for reply in replies]
    assert [parent(conversations, reply.node) for reply in replies] == [None, *nodes[:-1]]


def test_other_variables_of_the_template_make_another_conversation(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    dated = "{{ date }}{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    folder = write_folder(tiny_folder("llama"), tmp_path / "dated", dated)
    with sinkstream.load(folder, sinks=4, window=60, threads=1, max_sequences=3) as model:
        opened = open_conversations(model, tmp_path / "store")
        variables = [with_variables(None, {"date": date}, "") for date in ("a", "a", "b")]
        said: list[Any] = [user("Hi")]
        first = ask(opened, said, thinking=variables[0])
        said += [assistant(first.text), user("More")]
        found = [ask(opened, said, thinking=one).facts for one in variables[1:]]
        assert [one.session == first.facts.session for one in found] == [True, False]
        opened.close()


@pytest.mark.parametrize("given", ["It is", "It is ", ""])
def test_a_continued_message_has_the_tokens_of_one_without_a_store(
    conversations: Conversations, model: sinkstream.Model, given: str
) -> None:
    said = [{"role": "system", "content": "Be brief."}, user("Hi"), assistant(given)]
    plain = PlainTurns(model)
    for messages, is_open in ((said, True), (said[:1], False)):
        reply = ask(conversations, messages, continue_final=is_open, seed=1)
        turn = plain.begin(TurnRequest("", messages, options(1), continue_final=is_open))
        assert turn.stream.result().token_ids == reply.ids
        assert turn.facts.prompt_tokens == reply.facts.prompt_tokens
        turn.end()
        turns = conversations.transcript("", reply.node)
        assert [one["content"] for one in turns[0].messages] == [
            one["content"] for one in messages if one["content"]
        ]


def test_only_new_tokens_are_read(conversations: Conversations) -> None:
    chat = Chat(conversations)
    for i in range(30):
        reply = chat.say("More", seed=i)
        read = reply.facts.prompt_tokens - reply.facts.cached_tokens
        assert read <= (30 if i else 40)
        assert reply.facts.prompt_tokens == len(path_ids(conversations, reply.node)) - 8


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_an_edited_message_branches_from_the_turn_before(
    conversations: Conversations, at: int
) -> None:
    chat = Chat(conversations)
    replies = [chat.say(f"Message {i}", seed=i) for i in range(4)]
    edited = chat.branch(chat.messages[: 2 * at])
    branch = edited.say("Something else", seed=9)
    assert parent(conversations, branch.node) == (replies[at - 1].node if at else None)
    assert (branch.facts.session == replies[0].facts.session) == (at > 0)
    again = chat.say("And on", seed=4)  # the first branch is still there
    assert parent(conversations, again.node) == replies[-1].node


def test_a_regenerated_reply_is_a_sibling(conversations: Conversations) -> None:
    chat = Chat(conversations)
    chat.say("One")
    first = chat.say("Two", seed=1)
    second = chat.branch(chat.messages[:2]).say("Two", seed=2)
    assert second.ids != first.ids
    assert parent(conversations, second.node) == parent(conversations, first.node)


def test_an_edited_reply_is_read_as_given(
    model: sinkstream.Model, conversations: Conversations
) -> None:
    chat = Chat(conversations)
    chat.say("One")
    changed = chat.branch([chat.messages[0], {"role": "assistant", "content": "Not that."}])
    reply = changed.say("Two", seed=1)
    assert reply.facts.state == "new"
    ids = path_ids(conversations, reply.node)[:-8]
    assert model.tokenizer is not None
    assert "Not that." in model.tokenizer.decode(ids)
    assert reply.bits == alone(model, ids, 1)


@pytest.mark.parametrize("shown", [0, 1, 3])
def test_a_reply_that_the_client_cut_branches_from_the_turn_before(
    model: sinkstream.Model, conversations: Conversations, shown: int
) -> None:
    chat = Chat(conversations)
    first = chat.say("One")
    whole = chat.say("Two", seed=1)
    cut = chat.branch(chat.messages[:3])
    cut.messages.append({"role": "assistant", "content": whole.text[:shown]})
    reply = cut.say("Three", seed=2)
    of_cut = parent(conversations, reply.node)  # a turn of its own
    assert of_cut not in (None, whole.node)
    assert parent(conversations, str(of_cut)) == first.node
    assert reply.bits == alone(model, path_ids(conversations, reply.node)[:-8], 2)


def test_a_partial_reply_continues_if_all_of_it_is_sent_back(
    conversations: Conversations, model: sinkstream.Model
) -> None:
    chat = Chat(conversations)
    chat.say("One")
    asked = [*chat.messages, user("Two")]
    turn = conversations.begin(TurnRequest("", asked, options(1, 100_000)))
    seen = next(turn.stream)
    turn.stream.cancel()
    seen += "".join(turn.stream)
    end = turn.end()
    assert end.finish_reason == "cancelled"
    later = chat.branch([*asked, {"role": "assistant", "content": seen}]).say("Three", seed=3)
    assert parent(conversations, later.node) == end.node
    assert later.bits == alone(model, path_ids(conversations, later.node)[:-8], 3)


def test_a_reply_whose_stream_was_closed_is_known_to_its_end(
    conversations: Conversations, model: sinkstream.Model
) -> None:
    turn = conversations.begin(TurnRequest("", [user("One")], options(1, 500)))
    next(turn.stream)
    turn.stream.close()
    end = turn.end()
    later = ask(conversations, [user("Two")], previous=end.node, seed=2)
    assert later.facts.state == "resident"
    assert later.bits == alone(model, path_ids(conversations, later.node)[:-8], 2)


def test_an_id_names_a_turn_and_takes_only_new_messages(conversations: Conversations) -> None:
    chat = Chat(conversations)
    first = chat.say("One")
    chat.say("Two", seed=1)
    by_id = ask(conversations, [user("Other")], previous=first.node, seed=2)
    by_history = chat.branch(chat.messages[:2]).say("Other", seed=2)
    assert by_id.bits == by_history.bits
    assert parent(conversations, by_id.node) == parent(conversations, by_history.node) == first.node


@pytest.mark.parametrize("name", ["resp_0", "", "sess_0", "resp_' OR 1=1 --"])
def test_an_id_that_names_nothing_is_not_found(conversations: Conversations, name: str) -> None:
    ask(conversations, [user("One")])
    if name:
        with pytest.raises(NotFound, match="must name a turn"):
            ask(conversations, [user("Two")], previous=name)


def test_no_tenant_and_no_salt_reaches_another(conversations: Conversations) -> None:
    chat = Chat(conversations)
    first = chat.say("One", tenant="ada", cache_salt="a")
    asked = [*chat.messages, user("Two")]
    same: Any = {"tenant": "ada", "cache_salt": "a"}
    for other in ({"tenant": "bob"}, {"cache_salt": "b"}, {"tenant": "", "cache_salt": "a"}):
        reply = ask(conversations, asked, **{**same, **other})
        assert reply.facts.state == "new"
        assert reply.facts.session != first.facts.session
    with pytest.raises(NotFound):
        ask(conversations, [user("Two")], previous=first.node, tenant="bob")
    assert parent(conversations, ask(conversations, asked, **same).node) == first.node


def test_a_key_decides_between_equal_turns_and_finds_nothing_by_itself(
    conversations: Conversations,
) -> None:
    one = ask(conversations, [user("Hi")], session_key="one")
    two = ask(conversations, [user("Hi")], session_key="two")
    assert one.bits == two.bits
    assert one.node != two.node
    asked = [user("Hi"), {"role": "assistant", "content": one.text}, user("More")]
    for key, node in (("one", one.node), ("two", two.node), ("one", one.node)):
        reply = ask(conversations, asked, session_key=key)
        assert parent(conversations, reply.node) == node
    stranger = ask(conversations, [user("Other")], session_key="one")
    assert parent(conversations, stranger.node) is None


def test_equal_turns_prefer_the_one_in_memory(conversations: Conversations) -> None:
    one = ask(conversations, [user("Hi")])
    ask(conversations, [user("Hi")])
    residents = conversations._restorer.residency.all()
    (second,) = [each for each in residents if each.node and each.node.id != one.node]
    conversations._restorer.residency.discard(second)
    asked = [user("Hi"), {"role": "assistant", "content": one.text}, user("More")]
    reply = ask(conversations, asked)
    assert reply.facts.state == "resident"
    assert parent(conversations, reply.node) == one.node


def test_a_continued_reply_is_one_message(
    conversations: Conversations, model: sinkstream.Model
) -> None:
    said = [user("Tell me"), {"role": "assistant", "content": "Once "}]
    first = ask(conversations, said, continue_final=True, seed=1)
    whole = {"role": "assistant", "content": "Once " + first.text}
    reply = ask(conversations, [said[0], whole, user("Go on")], seed=2)
    assert reply.facts.state == "resident"
    assert parent(conversations, reply.node) == first.node
    assert reply.bits == alone(model, path_ids(conversations, reply.node)[:-8], 2)


def test_what_is_not_stored_lives_in_memory_alone(conversations: Conversations) -> None:
    chat = Chat(conversations)
    first = chat.say("One", store=False)
    second = chat.say("Two", store=False, seed=1)
    assert second.facts.state == "resident"
    assert conversations._store.node(second.node) is None
    assert conversations._store.conversations("") == []
    named = ask(conversations, [user("Three")], previous=second.node, store=False, seed=2)
    assert named.facts.state == "resident"
    with pytest.raises(NotFound):  # its session has moved on
        ask(conversations, [user("Three")], previous=first.node, store=False)
    with pytest.raises(InvalidArgument, match="`store` must be false to continue"):
        ask(conversations, [user("Four")], previous=named.node)
    with pytest.raises(NotFound):
        ask(conversations, [user("Four")], previous=named.node, store=False, tenant="bob")
    assert chat.say("Three", seed=2).facts.state == "new"  # a stored turn stands on stored ones


def test_an_unstored_turn_that_is_running_is_busy(conversations: Conversations) -> None:
    first = ask(conversations, [user("One")], store=False)
    request = TurnRequest("", [user("Two")], options(1, 100_000), first.node, store=False)
    running = conversations.begin(request)
    with pytest.raises(SessionBusy, match="cannot be continued by two requests"):
        conversations.begin(request)
    running.stream.close()
    running.end()


def test_an_unstored_turn_leaves_the_stored_one_where_it_was(conversations: Conversations) -> None:
    chat = Chat(conversations)
    chat.say("One")
    aside = chat.branch(chat.messages)
    assert aside.say("A title, please", store=False, seed=1).facts.state == "resident"
    assert chat.say("Two", seed=2).facts.state == "resident"


def test_a_long_history_that_is_not_stored_is_not_compared_at_each_of_its_turns(
    conversations: Conversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sessions in memory are few: what none of them has is not looked for."""
    residency = conversations._restorer.residency
    acquired: list[object] = []
    acquire = residency.acquire

    def noted(*given: Any, **named: Any) -> Any:
        acquired.append(given)
        return acquire(*given, **named)

    first = ask(conversations, [user("Hi")], store=False, seed=1)
    said = [user("Hi"), assistant(first.text), user("More")]
    monkeypatch.setattr(residency, "acquire", noted)
    longer = [said[0], said[1], *[user("a"), assistant("b")] * 20, user("More")]
    assert ask(conversations, longer, store=False, seed=1).facts.session
    count = len(acquired)
    acquired.clear()
    ask(conversations, [user("a"), assistant("b")] * 40 + [user("x")], store=False, seed=1)
    assert len(acquired) <= count <= 5


@pytest.mark.parametrize("changes", [lambda text: text + "!", lambda text: "x"])
def test_a_store_grows_with_what_is_new_if_the_client_changes_every_reply(
    conversations: Conversations, model: sinkstream.Model, changes: Callable[[str], str]
) -> None:
    said: list[Any] = []
    sessions, sizes, plain = [], [], PlainTurns(model)
    for i in range(12):
        said.append(user(f"Message {i}"))
        reply = ask(conversations, said, seed=i)
        turn = plain.begin(TurnRequest("", said, options(i)))
        assert turn.stream.result().token_ids == reply.ids
        turn.end()
        said.append(assistant(changes(reply.text)))
        sessions.append(reply.facts.session)
        turns = [t for name in set(sessions) for t in conversations.transcript("", name)]
        sizes.append(sum(len(t.read_ids) + len(t.reply_ids) for t in turns))
    assert len(set(sessions[1:])) == 1  # the first reply was not sent back
    grown = [later - earlier for earlier, later in pairwise(sizes[1:])]
    assert max(grown) < 2 * min(grown)


def test_an_imported_history_is_continued_from_any_of_its_turns(
    conversations: Conversations,
) -> None:
    history = [(user(f"Question {i}"), assistant(f"Answer {i}")) for i in range(5)]
    said: list[Any] = [{"role": "system", "content": "Be brief."}]
    said += [message for pair in history for message in pair]
    first = ask(conversations, [*said, user("More")])
    again = ask(conversations, [*said[:7], user("Other")])
    assert again.facts.session == first.facts.session
    assert again.facts.state != "new"
    turns = {turn.id: turn for turn in conversations.transcript("", first.facts.session)}
    before = turns[turns[again.node].parent or ""]
    assert (before.messages[-1]["content"], before.reply) == ("Question 2", "Answer 2")
    assert turns[again.node].messages == [{"content": "Other", "role": "user"}]
    assert ask(conversations, [*said, user("More")], seed=0).ids == first.ids
