"""Equal conversations have equal hashes; whatever distinguishes them changes the hash."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkstream.conversations import canonical
from sinkstream.conversations.canonical import (
    ReplyHash,
    beginning,
    canonical_messages,
    encode,
    follow,
    without_reasoning,
)
from sinkstream.errors import InvalidArgument
from sinkstream.text.messages import ROLES

Message = dict[str, Any]
START = beginning(b"secret", "tenant", "salt", "model")
HELLO: Message = {"role": "user", "content": "Hello"}


def chain(*messages: Message) -> bytes:
    *_, last = follow(START, canonical_messages(messages))
    return last


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (HELLO, {"content": "Hello", "role": "user"}),
        (HELLO, {**HELLO, "metadata": {"id": 3}, "annotations": [], "refusal": None}),
        (HELLO, {**HELLO, "name": None, "tool_calls": None}),
        (HELLO, {"role": "user", "content": [{"type": "text", "text": "Hello"}]}),
        (
            {"role": "user", "content": "a\nb"},
            {"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]},
        ),
        (
            {"role": "assistant", "content": "Hi"},
            {"role": "assistant", "content": "Hi \n\n", "reasoning_content": "Say hi."},
        ),
        (
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "f"}]},
            {"role": "assistant", "tool_calls": [{"type": "f", "id": "1"}]},
        ),
    ],
)
def test_messages_that_mean_the_same_are_the_same(one: Message, other: Message) -> None:
    assert chain(one) == chain(other)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content", "thinking"])
def test_thoughts_are_read_but_tell_nothing_apart(name: str) -> None:
    said = {"role": "assistant", "content": "Hi"}
    (message,) = canonical_messages([{**said, name: "Say hi."}])
    assert message["reasoning_content"] == message["thinking"] == "Say hi."
    assert without_reasoning(message) == canonical_messages([said])[0]
    assert chain(HELLO, {**said, name: "Say hi."}) == chain(HELLO, said)


@pytest.mark.parametrize(
    "other",
    [
        {"role": "user", "content": "Hello "},
        {"role": "user", "content": " Hello"},
        {"role": "user", "content": "hello"},
        {"role": "system", "content": "Hello"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Hello", "name": "Ada"},
        {"role": "tool", "content": "Hello", "tool_call_id": "1"},
        {"role": "user", "content": "Hello\0"},
        {"role": "user", "content": 'Hello","role":"user'},
    ],
)
def test_messages_that_differ_are_told_apart(other: Message) -> None:
    assert chain(HELLO) != chain(other)


def test_no_normalization_joins_what_the_tokenizer_tells_apart() -> None:
    assert chain({"role": "user", "content": "é"}) != chain({"role": "user", "content": "e\u0301"})


@pytest.mark.parametrize(
    "other",
    [
        beginning(b"Secret", "tenant", "salt", "model"),
        beginning(b"secret", "Tenant", "salt", "model"),
        beginning(b"secret", "tenant", "", "model"),
        beginning(b"secret", "tenant", "salt", "other"),
        beginning(b"secret", "tenantsalt", "", "model"),
        beginning(b"secret", "", "tenantsalt", "model"),
    ],
)
def test_no_hash_is_shared_between_tenants_salts_models_and_stores(other: bytes) -> None:
    assert other != START
    assert list(follow(other, [HELLO])) != list(follow(START, [HELLO]))


def test_the_order_and_the_borders_of_messages_count() -> None:
    one, other = {"role": "user", "content": "a"}, {"role": "user", "content": "b"}
    assert chain(one, other) != chain(other, one)
    assert chain(one, other) != chain({"role": "user", "content": "ab"})


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [""],
        ["Hello"],
        ["He", "llo"],
        ["  lead", "ing"],
        ["tail ", " ", "\n"],
        ["mid ", "dle"],
        ['quote " and \\ and \n', "\t", "é🎉\ufffd\u2028\x00\x1b"],
        [" ", "\n", "\t"],
        ["x\u3000", "\u00a0"],
    ],
)
def test_a_reply_in_pieces_has_the_hash_of_its_message(pieces: list[str]) -> None:
    reply = ReplyHash(START)
    for piece in pieces:
        reply.add(piece)
        reply.digest()  # may be asked for at any time
    assert reply.digest() == chain({"role": "assistant", "content": "".join(pieces)})


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        (" \n Sure. ", "Sure."),
        ("\n\n", ""),
        ("\ufeff \u200bSu\x00re\ufffd.\r\nYes\x07 \u200b", "Sure.\nYes"),
        ("❤\ufe0f \U000f0000ok", "❤ ok"),
    ],
)
def test_a_reply_that_a_client_trims_or_cleans_is_the_same(written: str, sent: str) -> None:
    for cut in range(len(written) + 1):
        reply = ReplyHash(chain(HELLO))
        reply.add(written[:cut])
        reply.add(written[cut:])
        for text in (written, sent):
            assert reply.digest() == chain(HELLO, {"role": "assistant", "content": text})
    if sent:
        assert chain({**HELLO, "content": written}) != chain({**HELLO, "content": sent})


def test_a_reply_of_spaces_is_not_held() -> None:
    reply = ReplyHash(START)
    for _ in range(1000):
        reply.add(" \n" * 1000)
    assert all(isinstance(part, blake2b | bool) for part in vars(reply).values())
    assert reply.digest() == chain({"role": "assistant", "content": ""})


def test_a_last_message_that_is_continued_keeps_its_spaces() -> None:
    message = {"role": "assistant", "content": "Once "}
    assert canonical_messages([message])[0]["content"] == "Once"
    assert canonical_messages([message], continue_final=True)[0]["content"] == "Once "


@pytest.mark.parametrize(
    ("message", "error", "text"),
    [
        ({"role": "poet", "content": "x"}, InvalidArgument, "`role` must be one of assistant"),
        ({"role": "user"}, InvalidArgument, "must have `content` and `role`"),
        ({"role": "user", "content": None}, TypeError, "`content` must be a string"),
        ({"role": "user", "content": "\ud800"}, InvalidArgument, "surrogate"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
            InvalidArgument,
            '`type` must be "text"',
        ),
    ],
)
def test_a_malformed_message_is_refused(
    message: Message, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        canonical_messages([message])
    with pytest.raises(InvalidArgument, match="at least one message"):
        canonical_messages([])


def test_the_text_of_a_message_is_stable() -> None:
    """Stores hold hashes of it."""
    message = {"role": "user", "name": "Ada", "content": "é\n"}
    assert encode(canonical_messages([message])[0]) == (
        '{"content":"é\\n","name":"Ada","role":"user"}'
    )


@given(st.text(), st.sampled_from(ROLES))
def test_a_plain_message_has_the_text_that_any_message_has(content: str, role: str) -> None:
    """The fast way for messages that are a role and a text, and the general one are the same."""
    message = {"content": content, "role": role}
    general = json.dumps(message, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    assert encode(message) == general
    named = {**message, "name": None}  # takes the general way
    assert canonical_messages([{"role": role, "content": content}]) == canonical_messages([named])
    assert chain(message) == chain({**message, "thinking": "A thought."})


@given(st.lists(st.tuples(st.sampled_from(ROLES), st.text()), min_size=1))
def test_a_long_text_that_is_read_in_slices_is_the_same(said: list[tuple[str, str]]) -> None:
    messages = [{"content": text, "role": role} for role, text in said]
    whole = chain(*messages)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canonical, "_SLICE", 3)
        assert chain(*messages) == whole


CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "f", "arguments": '{"b": [1, 2.5], "a": "é\\u2028"}'},
}


def said(**function: Any) -> Message:
    call = {**CALL, "function": {**CALL["function"], **function}}  # type: ignore[dict-item]
    return {"role": "assistant", "content": "", "tool_calls": [call]}


@pytest.mark.parametrize(
    "other",
    [
        said(arguments='{"b":[1,2.5],"a":"é\\u2028"}'),
        said(arguments='{"a": "\\u00e9\\u2028", "b": [1, 2.5]}\n'),
        {"role": "assistant", "tool_calls": [{**CALL, "index": 0}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
    ],
)
def test_calls_that_clients_rewrite_are_the_same(other: Message) -> None:
    assert chain(HELLO, other) == chain(HELLO, said())


@pytest.mark.parametrize(
    "other",
    [
        said(arguments='{"b": [2.5, 1], "a": "é\\u2028"}'),
        said(name="g"),
        {**said(), "content": "Yes."},
        {"role": "assistant", "content": "", "tool_calls": [{**CALL, "id": "call_2"}]},
        {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
        {"role": "assistant", "content": ""},
    ],
)
def test_calls_that_differ_are_told_apart(other: Message) -> None:
    assert chain(HELLO, other) != chain(HELLO, said())


@pytest.mark.parametrize(
    "arguments", ['{"a": 1}', "{", "", '{"a": "\\ud800"}', "[" * 100_000, "1" * 5000, '{"a": NaN}']
)
def test_a_reply_with_calls_has_the_hash_of_its_message(arguments: str) -> None:
    message = {**said(arguments=arguments), "content": "So:"}
    reply = ReplyHash(chain(HELLO))
    for piece in ("So", ": ", "\n"):
        reply.add(piece)
    assert reply.digest(message["tool_calls"]) == chain(HELLO, message)


def test_messages_are_read_as_the_client_wrote_them() -> None:
    (message,) = canonical_messages([said()])
    assert message["tool_calls"] == [CALL]


def test_very_long_arguments_are_compared_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of the JSON parser holds the GIL."""
    monkeypatch.setattr(canonical, "_SLICE", 20)

    def with_arguments(text: str) -> bytes:
        call = {"id": "1", "function": {"name": "f", "arguments": text}}
        return chain(HELLO, {"role": "assistant", "content": "", "tool_calls": [call]})

    assert with_arguments('{"a": 1}') == with_arguments('{ "a":1 }')
    long = '{"a": 1, "b": 123456789}'
    assert with_arguments(long) == with_arguments(long) != with_arguments(long.replace(" ", ""))
