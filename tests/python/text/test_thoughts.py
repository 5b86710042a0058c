"""Thoughts are separated from text, however the reply is cut into tokens and pieces."""

from __future__ import annotations

import codecs
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.errors import InvalidArgument
from sinkstream.text.chat_format import ChatFormat
from sinkstream.text.find_thoughts import find_thoughts
from sinkstream.text.marked_text import MAX_SPACES, ThoughtFormat, joined
from sinkstream.text.thought_reader import ThoughtSplitter, ThoughtTags
from sinkstream.text.tokenizers.token_bytes import token_bytes
from sinkstream.text.turn_format import difference_of
from tests.python.lanes import examples
from tests.python.text.encoding import detect_turn_format, encode_chat
from tests.python.text.reasoning_templates import (
    CHANNEL_TOKENS,
    CHANNELS,
    EMPTIED,
    KEPT,
    OPENED,
    THINK,
    WRITTEN,
    text_format,
)  # fmt: skip
from tests.python.text.templates import TEMPLATES
from tests.python.text.vocabularies import special

FORMATS: dict[str, TextFormat] = {
    "written": text_format(WRITTEN, *THINK),
    "written_as_text": text_format(WRITTEN),
    "opened": text_format(OPENED, *THINK),
    "opened_as_text": text_format(OPENED),
    "emptied": text_format(EMPTIED, *THINK),
    "kept": text_format(KEPT, *special("[THINK]", "[/THINK]")),
    "channels": text_format(CHANNELS, *CHANNEL_TOKENS),
}


def found(text: TextFormat, thinking: Any = None) -> ThoughtFormat | None:
    assert text.tokenizer is not None
    assert text.chat_template is not None
    chat = ChatFormat(text, text.tokenizer, text.chat_template, thinking=thinking)
    return find_thoughts(chat, text.tokenizer)


@cache
def tags(name: str) -> ThoughtTags:
    text = FORMATS[name]
    form = found(text)
    assert form is not None
    assert text.tokenizer is not None
    table = token_bytes(text.tokenizer, text.tokenizer.get_vocab_size())
    return ThoughtTags(form, table, text.end_token_ids)


def ids_of(name: str, text: str) -> list[int]:
    tokenizer = FORMATS[name].tokenizer
    assert tokenizer is not None
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


# ---- finding ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "begin", "end", "answer"),
    [
        ("written", "<think>", "</think>", ""),
        ("written_as_text", "<think>", "</think>", ""),
        ("opened", "<think>", "</think>", ""),
        ("opened_as_text", "<think>", "</think>", ""),
        ("emptied", "<think>", "</think>", ""),
        ("kept", "[THINK]", "[/THINK]", ""),
        (
            "channels",
            "<|channel|>analysis<|message|>",
            "<|end|><|start|>assistant<|channel|>final<|message|>",
            "<|channel|>final<|message|>",
        ),
    ],
)
def test_tags_are_found_by_rendering(name: str, begin: str, end: str, answer: str) -> None:
    form = tags(name).form
    tokenizer = FORMATS[name].tokenizer
    assert tokenizer is not None

    def literal(tag: str) -> str:
        for token_id, marker in form.markers.items():
            tag = tag.replace(marker, tokenizer.id_to_token(token_id) or "")
        return tag

    assert [literal(tag) for tag in (form.begin, form.end, form.answer)] == [begin, end, answer]
    assert form.start == ("thought" if "opened" in name or name == "emptied" else "before")
    assert form.is_kept == (name == "kept")
    assert bool(form.markers) == (not name.endswith("as_text"))


@pytest.mark.parametrize("name", sorted(TEMPLATES.keys() - {"qwen3"}))
def test_other_templates_have_no_thoughts(name: str) -> None:
    assert found(text_format(TEMPLATES[name])) is None


def test_the_tags_of_qwen3s_own_template_are_found() -> None:
    form = found(text_format(TEMPLATES["qwen3"], *THINK))
    assert form is not None
    assert (form.start, form.is_kept, len(form.markers)) == ("before", False, 2)


def test_a_prompt_with_an_empty_thought_leaves_the_model_before_text() -> None:
    form = found(FORMATS["written"], thinking=False)
    assert form is not None
    assert form.start == "before"


def test_thinking_reaches_the_template() -> None:
    text = FORMATS["written"]
    messages = [{"role": "user", "content": "Hi"}]
    usual = encode_chat(text, messages)
    assert encode_chat(text, messages, thinking=True) == usual
    quiet = encode_chat(text, messages, thinking=False)
    assert quiet[: len(usual)] == usual
    assert quiet[len(usual) :] == ids_of("written", "<think>\n\n</think>\n\n")
    assert encode_chat(FORMATS["channels"], messages, thinking="low")


@pytest.mark.parametrize("name", ["opened", "kept"])
@pytest.mark.parametrize("thinking", [True, False, "low"])
def test_a_template_without_such_a_variable_is_named(name: str, thinking: Any) -> None:
    with pytest.raises(
        InvalidArgument, match=r"`thinking` must be None, but is .* has no (switch|setting)"
    ):
        encode_chat(FORMATS[name], [{"role": "user", "content": "Hi"}], thinking=thinking)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("reply", ["Yes.", "a\n\nb", " ", "é🎉"])
def test_an_exchange_is_what_the_template_writes_of_earlier_turns(name: str, reply: str) -> None:
    text = FORMATS[name]
    turns = detect_turn_format(text)
    messages = [
        {"role": role, "content": content}
        for role, content in (("user", "Hi"), ("assistant", reply)) * 2
    ]
    ids = turns.opening(None) + turns.exchange(*messages[:2], after=None)
    ids += turns.exchange(*messages[:2], after="assistant") + turns.user("So", after="assistant")
    assert ids == encode_chat(text, [*messages, {"role": "user", "content": "So"}])
    assert difference_of(turns, drops_thoughts=True) == ""


# ---- splitting -------------------------------------------------------------------------------

CASES = [
    ("written", "<think>\nA b\n</think>\n\nYes.", "A b", "Yes."),
    ("written", "\n<think>A</think>Yes", "A", "Yes"),
    ("written", "Yes.", "", "Yes."),
    ("written", "  Yes <think>no</think>", "", "  Yes <think>no</think>"),
    ("written", "<think>A", "A", ""),
    ("written", "<think>", "", ""),
    ("written", "", "", ""),
    ("written", "<think>\n\n</think>\n\nYes", "", "Yes"),
    ("written", "<think>a</think>b</think>c<think>", "a", "b</think>c<think>"),
    ("written_as_text", "<think>a < b </thin </think>Yes </think>", "a < b </thin", "Yes </think>"),
    ("written_as_text", "<thin", "", "<thin"),
    ("written_as_text", " " * 70 + "<think>a", "", " " * 70 + "<think>a"),
    ("written_as_text", "<thing>", "", "<thing>"),
    ("written_as_text", "<think>a</th", "a</th", ""),
    ("opened", "A\n</think>\n\nYes", "A", "Yes"),
    ("opened", "A", "A", ""),
    ("opened", "<think>\nA</think>Yes", "A", "Yes"),
    ("opened", "</think>Yes", "", "Yes"),
    ("opened_as_text", "<think>\nA</think>Yes", "A", "Yes"),
    ("opened_as_text", "<thB</think>Yes", "<thB", "Yes"),
    ("emptied", "A é🎉\n</think>\n\nYes 日本", "A é🎉", "Yes 日本"),
    ("kept", "[THINK]A[/THINK]Yes", "A", "Yes"),
    ("channels", "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>final"
     "<|message|>Yes", "A", "Yes"),
    ("channels", "<|channel|>final<|message|>Yes", "", "Yes"),
    ("channels", "<|channel|>analysis<|message|>A", "A", ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "reply", "thought", "text"), CASES)
def test_a_reply_is_split(name: str, reply: str, thought: str, text: str) -> None:
    assert tags(name).split(ids_of(name, reply))[:2] == (thought, text)


def test_the_letters_of_a_tag_are_no_tag_where_it_is_a_token() -> None:
    spelled = [i for letter in "</think>" for i in ids_of("opened", letter)]
    assert len(spelled) == 8
    ids = [*ids_of("opened", "a"), *spelled, *ids_of("opened", "b</think>c")]
    assert tags("opened").split(ids)[:2] == ("a</think>b", "c")


def test_a_long_run_of_spaces_is_not_held_back() -> None:
    splitter = ThoughtSplitter(tags("opened_as_text").form)
    given = splitter.push("x" + " " * 1000)
    assert joined(given, "thought") == "x" + " " * (1000 - MAX_SPACES)
    assert splitter.push("</think>y") == [("text", "y")]


PIECES = st.sampled_from(
    ["<think>", "</think>", "<", "</", "think", ">", " ", "\n", "a", "Yes", "é", "🎉",
     "[THINK]", "[/THINK]", "<|channel|>", "analysis", "final", "<|message|>", "<|end|>",
     "<|start|>", "assistant", " " * 70]
)  # fmt: skip


@examples(300)
@given(st.sampled_from(sorted(FORMATS)), st.lists(PIECES, max_size=12), st.data())
def test_cutting_marked_text_anywhere_changes_nothing(
    name: str, pieces: list[str], data: st.DataObject
) -> None:
    form = tags(name).form
    marked = "".join(pieces)
    for marker, literal in form.literals.items():
        marked = marked.replace(literal, marker) if literal else marked
    whole = ThoughtSplitter(form)
    expected = whole.push(marked) + whole.end()
    splitter = ThoughtSplitter(form)
    parts = []
    while marked:
        count = data.draw(st.integers(1, len(marked)))
        parts += splitter.push(marked[:count])
        marked = marked[count:]
    parts += splitter.end()
    for kind in ("thought", "text"):
        assert joined(parts, kind) == joined(expected, kind)


@examples(300)
@given(
    st.sampled_from(sorted(FORMATS)),
    st.lists(PIECES, max_size=10),
    st.lists(st.integers(0, 5), min_size=1, max_size=20),
)
@example("emptied", ["é", "</think>", "🎉"], [3])
@example("kept", ["[THINK]", "a", "é", "[/THINK]", "🎉"], [4])
def test_text_that_lags_behind_its_tokens_changes_nothing(
    name: str, pieces: list[str], lags: list[int]
) -> None:
    """As a stop string does, hold back characters that earlier tokens have completed."""
    ids = [i for piece in pieces for i in ids_of(name, piece)]
    found = tags(name)
    expected = found.split(ids)[:2]
    reader, decoder = found.reader(), codecs.getincrementaldecoder("utf-8")("replace")
    parts, held = [], ""
    for i, token_id in enumerate(ids):
        is_hidden = token_id in found.table.special
        held += decoder.decode(b"" if is_hidden else found.table.pieces[token_id])
        shown = max(0, len(held) - lags[i % len(lags)])
        parts += reader.token(token_id, held[:shown])[1]
        held = held[shown:]
    parts += reader.end(held + decoder.decode(b"", final=True))
    assert (joined(parts, "thought"), joined(parts, "text")) == expected


def test_a_given_beginning_decides_where_the_reply_is() -> None:
    """The template has written it as a message, which no generation prompt precedes."""
    for name, begun, expected in [
        ("opened_as_text", None, ("a", "b")),
        ("opened_as_text", "", ("", "a</think>b")),
        ("opened_as_text", "x", ("", "a</think>b")),
        ("opened_as_text", " <think>x", ("a", "b")),
        ("opened_as_text", "<think>x</think>", ("", "a</think>b")),
        ("emptied", "<think>x", ("", "a</think>b")),
    ]:
        reader = tags(name).reader(begun)
        parts = reader.push_text("a</think>b") + reader.end()
        assert (joined(parts, "thought"), joined(parts, "text")) == expected, (name, begun)


def test_tokens_of_thoughts_are_counted_with_their_tags() -> None:
    reader = tags("written").reader()
    kinds = [
        reader.token(i, tags("written").table.pieces[i].decode())[0]
        for i in ids_of("written", "<think>a</think>b")
    ]
    assert kinds == ["thought", "thought", "thought", "text"]
    assert reader.tokens == 3
