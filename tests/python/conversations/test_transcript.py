"""Turns as they are shown: which tokens hold each message, and each of its characters."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream.conversations.conversations import Conversations
from sinkstream.conversations.open_store import Settings
from sinkstream.conversations.transcript import (
    ShownMessage,
    StoredTurn,
    shown_messages,
)
from sinkstream.conversations.turns import NotFound, TurnRequest
from sinkstream.model import host_of
from sinkstream.server.texts import Texts

# Of the tiny model's tokens, these are words.
WORDS = dict.fromkeys(range(259, 286), 100.0)
OPTIONS: Any = {"max_tokens": 12, "ignore_eos": True, "seed": 5, "logit_bias": WORDS}


@pytest.fixture(scope="module")
def model(tiny_folder: Callable[[str], Path]) -> Iterator[sinkstream.Model]:
    with sinkstream.load(tiny_folder("llama"), window=60, max_sequences=3, threads=1) as found:
        yield found


@pytest.fixture
def turns(model: sinkstream.Model, tmp_path: Path) -> Iterator[Conversations]:
    made = Conversations(model, tmp_path, Settings(maintenance_s=3600))
    yield made
    made.close()


def say(turns: Conversations, history: list[dict[str, str]], text: str, **more: Any) -> str:
    """Add a message and its reply to a history; return the turn's id."""
    history.append({"role": "user", "content": text})
    turn = turns.begin(TurnRequest("", history, OPTIONS, **more))
    history.append({"role": "assistant", "content": turn.stream.result().text})
    return turn.end().node


def messages_of(
    turns: Conversations, model: sinkstream.Model, name: str
) -> list[list[ShownMessage]]:
    table = Texts(host_of(model)).table
    return [shown_messages(turn, table) for turn in turns.transcript("", name)]


TEXTS = [
    "the sea",
    " spaces around \n",
    "é 🌊 waves 🌊",
    "the the the",
    "user",
    "line\n\nline",
    "s",
]


def test_a_transcript_has_all_messages_and_their_places(
    turns: Conversations, model: sinkstream.Model
) -> None:
    history = [{"role": "system", "content": "be brief"}]
    names = [say(turns, history, text) for text in TEXTS]
    ((conversation, *_),) = turns.conversations("", 9)
    shown = messages_of(turns, model, conversation)
    flat = [message for turn in shown for message in turn]
    assert [(one.role, one.content) for one in flat] == [
        (one["role"], one["content"]) for one in history
    ]
    kept = turns.transcript("", conversation)
    assert [turn.id for turn in kept] == names
    assert [turn.parent for turn in kept] == [None, *names[:-1]]
    ids = [one for turn in kept for one in (*turn.read_ids, *turn.reply_ids)]
    assert len(ids) == kept[-1].tokens
    texts = Texts(host_of(model))
    assert texts.table is host_of(model).table  # built once
    previous = 0
    for message in flat:
        assert previous <= message.begin < message.end <= len(ids)
        previous = message.end
        spelled = texts.decode(ids[message.begin : message.end])
        assert message.content.strip() in spelled
        assert message.offsets is not None
        assert len(message.offsets) == message.end - message.begin
        text = message.content.rstrip()
        for index, offset in enumerate(message.offsets):
            rest = texts.decode(ids[message.begin + index : message.end]).rstrip()
            if index == 0:  # its token may begin with the end of the template's header
                assert rest.endswith(text[offset:])
            elif rest.startswith("\ufffd"):  # in the middle of a character
                assert rest.lstrip("\ufffd") == text[offset + 1 :]
            else:
                assert rest == text[offset:]
    assert messages_of(turns, model, names[2]) == [shown[2]]


def test_bytes_that_are_not_text_have_places_too(
    turns: Conversations, model: sinkstream.Model
) -> None:
    turn = turns.begin(TurnRequest("", [{"role": "user", "content": "the"}], {**OPTIONS,
                                   "logit_bias": None, "temperature": 1.0}))  # fmt: skip
    text = turn.stream.result().text
    assert "\ufffd" in text
    (shown,) = messages_of(turns, model, turn.end().node)
    assert shown[1].offsets is not None
    assert shown[1].offsets == sorted(shown[1].offsets)
    assert 0 <= shown[1].offsets[-1] <= len(text)


@pytest.mark.parametrize("given", ["It is", " é 🌊 the ", "line\n\nline\n", "the sea"])
def test_the_beginning_of_a_reply_that_was_given_is_part_of_it(
    turns: Conversations, model: sinkstream.Model, given: str
) -> None:
    history = [{"role": "user", "content": "the sea"}, {"role": "assistant", "content": given}]
    turn = turns.begin(TurnRequest("", history, OPTIONS, continue_final=True))
    whole = given + turn.stream.result().text
    name = turn.end().node
    (shown,) = messages_of(turns, model, name)
    asked, reply = shown
    assert [(one.role, one.content) for one in shown] == [("user", "the sea"), ("assistant", whole)]
    (kept,) = turns.transcript("", name)
    ids, texts = [*kept.read_ids, *kept.reply_ids], Texts(host_of(model))
    assert asked.end <= reply.begin < len(kept.read_ids)
    assert reply.end == len(ids)
    assert reply.offsets is not None
    assert len(reply.offsets) == reply.end - reply.begin
    for index, offset in enumerate(reply.offsets):
        rest = texts.decode(ids[reply.begin + index :])
        if index == 0:  # its token may begin with the end of the template's header
            assert rest.endswith(whole)
        elif rest.startswith("\ufffd"):  # in the middle of a character
            assert rest.lstrip("\ufffd") == whole[offset + 1 :]
        else:
            assert rest == whole[offset:]


def test_a_given_beginning_that_its_tokens_do_not_spell_has_no_offsets(
    model: sinkstream.Model,
) -> None:
    tokenizer, table = model.tokenizer, Texts(host_of(model)).table
    assert tokenizer is not None
    read, said = (tokenizer.encode(text, add_special_tokens=False).ids for text in ("It is", "the"))
    turn = StoredTurn(
        "resp_1", None, "sess_1", None, 0.0, "stop", len(read) + len(said), [], "It is ",
        array("i", read), array("i", said), "the",
    )  # fmt: skip
    (shown,) = shown_messages(turn, table)
    assert (shown.content, shown.begin, shown.offsets) == ("It is the", len(read), None)


def test_a_list_has_titles_and_names_latest_first(turns: Conversations) -> None:
    """Titles are the beginnings of first user messages."""
    long = 'a "title" 🌊 ' + "x" * 200
    say(turns, [{"role": "system", "content": "be brief"}], long, session_key="mine")
    history: list[dict[str, str]] = []
    say(turns, history, "second")
    say(turns, history, "not a title")
    listed = turns.conversations("", 9)
    assert [(one.title, one.session_key) for one in listed] == [
        ("second", None), ('a "title" 🌊 ' + "x" * 68, "mine")
    ]  # fmt: skip
    first, second = listed
    assert turns.conversations("", 1) == [first]
    assert turns.conversations("", 9, first.id) == [second]
    assert turns.conversations("", 9, second.id) == []
    assert turns.conversations("another", 9) == []
    for tenant, name in (("another", first.id), ("", "sess_1")):
        with pytest.raises(NotFound):
            turns.conversations(tenant, 9, name)


def test_a_conversation_is_renamed_by_its_owner(turns: Conversations) -> None:
    def titles() -> dict[str, str]:
        return {one.id: one.title for one in turns.conversations("", 9)}

    history: list[dict[str, str]] = []
    name = say(turns, history, "first")
    say(turns, history, "second")
    (conversation,) = titles()
    turns.rename("", conversation, "🌊 waves")
    say(turns, history, "third")  # it keeps its title
    assert titles() == {conversation: "🌊 waves"}
    for tenant, each in (("another", conversation), ("", name), ("", "sess_none")):
        with pytest.raises(NotFound, match="there is no conversation"):
            turns.rename(tenant, each, "stolen")
    assert titles() == {conversation: "🌊 waves"}


def test_a_transcript_is_its_owners_alone(turns: Conversations) -> None:
    name = say(turns, [], "a secret")
    (conversation,) = (each for each, _ in turns._store.conversations(""))
    for each in (name, conversation):
        assert len(turns.transcript("", each)) == 1
        with pytest.raises(NotFound, match=f"no turn or conversation '{each}'"):
            turns.transcript("another", each)
    turns.delete("", conversation)
    for each in (name, conversation):
        with pytest.raises(NotFound):
            turns.transcript("", each)


@pytest.mark.parametrize("reply", ["the sea é", "é", ""])
def test_the_tokens_of_a_thought_are_before_the_first_character(
    model: sinkstream.Model, reply: str
) -> None:
    tokenizer, table = model.tokenizer, Texts(host_of(model)).table
    assert tokenizer is not None

    def shown(*texts: str) -> ShownMessage:
        ids = [i for text in texts for i in tokenizer.encode(text, add_special_tokens=False).ids]
        turn = StoredTurn(
            id="resp_1",
            parent=None,
            conversation="sess_1",
            session_key=None,
            created=0.0,
            finish_reason="stop",
            tokens=10 + len(ids),
            messages=[],
            given="",
            read_ids=array("i"),
            reply_ids=array("i", ids),
            reply=reply,
        )
        (message,) = shown_messages(turn, table)
        return message

    alone, after = shown(reply), shown("é, the sea é</think>\n", reply)
    assert alone.offsets is not None
    assert after.offsets is not None
    thought = len(after.offsets) - len(alone.offsets)
    assert thought > 5
    assert after.offsets == [0] * thought + alone.offsets
    assert shown("something", "else").offsets is None or reply == ""
