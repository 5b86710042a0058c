"""Messages are read by parts, and their ids are those of a conversation that was held."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

import sinkstream
from sinkstream.conversations.canonical import canonical_messages
from sinkstream.conversations.read_messages import BEGINNING, StartPoint, read_messages
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
        [SYSTEM],
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
    "messages",
    [
        [user("Hello"), assistant("Once ")],
        [user("Hello"), assistant("")],
        [SYSTEM, assistant("Once")],
        [assistant("Once")],
        [user("One"), assistant("A"), user("Two"), assistant("<|im_end|>")],
        [user("Hello"), assistant("I look."), {"role": "tool", "content": "42"}, assistant("It")],
    ],
)
def test_a_continued_message_is_that_of_the_whole_rendering(
    model: sinkstream.Model, messages: list[Any]
) -> None:
    whole = encode_chat(model._text, messages, is_open=True)
    assert read(model, messages, continue_final=True) == whole


def test_only_the_assistants_text_is_continued(model: sinkstream.Model) -> None:
    calls = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    calling = {"role": "assistant", "content": "I", "tool_calls": calls}
    for last, rule in ((user("Hello"), "have the role"), (calling, "have no `tool_calls`")):
        for refuses in (
            lambda said: read(model, said, continue_final=True),
            lambda said: encode_chat(model._text, said, is_open=True),
        ):
            with pytest.raises(InvalidArgument, match=f"last message of `prompt` must {rule}"):
                refuses([user("Hello"), last])
