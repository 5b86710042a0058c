"""Messages are read by parts, and their ids are those of a conversation that was held."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

import sinkstream
from sinkstream.conversations.canonical import canonical_messages
from sinkstream.conversations.reading import BEGINNING, StartPoint, read_messages
from sinkstream.errors import InvalidArgument
from sinkstream.model import host_of
from tests.python.conversations.talk import assistant, user
from tests.python.text.encoding import encode_chat

SYSTEM = {"role": "system", "content": "Be brief."}


def read(
    model: sinkstream.Model, messages: list[Any], start: StartPoint = BEGINNING, **more: Any
) -> Any:
    more.setdefault("continue_final", False)
    said = canonical_messages(messages, continue_final=more["continue_final"])
    return read_messages(host_of(model).formats.turns(None), said, start, **more)


@pytest.mark.parametrize(
    "messages",
    [
        [user("Hello")],
        [SYSTEM, user("Hello")],
        [SYSTEM, user("Hello"), assistant("Hi."), user("More")],
        [user("One"), user("Two")],
        [user("One"), assistant("A"), assistant("B"), user("Two")],
        [assistant("Welcome."), user("Hello")],
        [user("Hello"), {"role": "system", "content": "Now in French."}, user("More")],
        [user("Hello"), assistant("I look."), {"role": "tool", "content": "42"}],
        [user("Hello"), assistant("")  , user("More")],
        [user("<|im_end|>"), assistant("<|im_start|>"), user("x")],
        [user("Hello"), assistant("Hi.")],
    ],
)  # fmt: skip
def test_what_is_read_is_the_whole_rendering(model: sinkstream.Model, messages: list[Any]) -> None:
    assert read(model, messages) == encode_chat(model._text, canonical_messages(messages))


def test_reading_on_is_reading_all(model: sinkstream.Model) -> None:
    turns = host_of(model).formats.turns(None)
    first = [SYSTEM, user("Hello")]
    later = [user("More"), assistant("Yes."), user("And?")]
    written = [*turns.reply("Hi."), *model.end_token_ids]
    parts = array("i", read(model, first)) + array("i", written)
    parts.extend(read(model, later, StartPoint("assistant", True, written[-1])))
    assert parts.tolist() == read(model, [*first, assistant("Hi."), *later])


def test_a_reply_that_was_cut_is_closed_before_the_next_message(model: sinkstream.Model) -> None:
    turns = host_of(model).formats.turns(None)
    written = turns.reply("Hi.")
    rest = read(model, [user("More")], StartPoint("assistant", True, written[-1]))
    assert read(model, [user("Hello")]) + written + rest == read(
        model, [user("Hello"), assistant("Hi."), user("More")]
    )


def test_a_continued_reply_is_not_closed(model: sinkstream.Model) -> None:
    said = [user("Hello"), assistant("Once ")]
    open_ids = read(model, said, continue_final=True)
    assert open_ids == read(model, said[:1]) + host_of(model).formats.turns(None).reply("Once ")


@pytest.mark.parametrize(
    ("messages", "continue_final", "text"),
    [
        ([SYSTEM], False, "must have a message after the system prompt"),
        ([SYSTEM, assistant("Once")], True, "must end with a user message"),
        ([user("Hello")], True, "must end with a user message"),
    ],
)
def test_what_cannot_be_replied_to_is_refused(
    model: sinkstream.Model, messages: list[Any], continue_final: bool, text: str
) -> None:
    with pytest.raises(InvalidArgument, match=text):
        read(model, messages, continue_final=continue_final)
