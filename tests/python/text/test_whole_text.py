"""A control token affects the text next to it as in transformers, and stays the template's own."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import transformers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.errors import InvalidArgument
from sinkstream.text.plain_text import PlainEncoder
from sinkstream.text.tokenizers.control_tokens import control_tokens
from tests.python.lanes import examples
from tests.python.text import vocabularies
from tests.python.text.encoding import detect_turn_format, encode_chat

# Control tokens of letters, and such that absorb whitespace; ordinary words and whitespace that are
# added tokens.
CONTROL: list[tuple[str, dict[str, bool]]] = [
    ("turn|>", {}),
    ("<|turn", {}),
    ("<|left|>", {"lstrip": True}),
    ("<|right|>", {"rstrip": True}),
    ("<|both|>", {"lstrip": True, "rstrip": True}),
    ("<|word|>", {"single_word": True}),
    ("<|line|>\n", {}),
    ("<|norm|>", {"normalized": True}),
]
PLAIN: list[tuple[str, dict[str, bool]]] = [
    ("tool", {"single_word": True}),
    ("café", {"single_word": True, "normalized": True}),
    ("\n\n", {}),
    (" x", {}),
    ("<think>", {"lstrip": True}),
]
FAMILY = ("qwen3", "sentencepiece", "sentencepiece_without_prefix", "metaspace_first")
PARTS = [name for name, _ in CONTROL + PLAIN]
TEXTS = [*PARTS, " ", "\n", "\t", "a", "tool", "é", "_", "日本", "1", "|>", "<|", "\u00a0"]


def text_of(family: str, template: str) -> TextFormat:
    """Return a family's text format with these tokens."""
    base = vocabularies.FAMILIES[family]()
    assert base.tokenizer is not None
    tokenizer = Tokenizer.from_str(base.tokenizer.to_str())
    for tokens, special in ((CONTROL, True), (PLAIN, False)):
        for name, flags in tokens:
            flags = {"normalized": False} | flags
            tokenizer.add_tokens([AddedToken(name, special=special, **flags)])
    return dataclasses.replace(base, tokenizer=tokenizer, chat_template=template)


def oracle(text: TextFormat, messages: list[dict[str, str]]) -> list[int]:
    """Encode a conversation with transformers."""
    assert text.tokenizer is not None
    copy = Tokenizer.from_str(text.tokenizer.to_str())
    found: Any = transformers.PreTrainedTokenizerFast(tokenizer_object=copy).apply_chat_template(
        messages, chat_template=text.chat_template, return_dict=False
    )
    ids: list[int] = found
    return ids


def said(content: str) -> list[dict[str, str]]:
    """Return a conversation of one message."""
    return [{"role": "user", "content": content}]


@pytest.mark.parametrize("family", FAMILY)
@pytest.mark.parametrize(
    ("template", "content"),
    [
        ("{{ messages[0].content }}turn|>", "tool"),
        ("<|turn{{ messages[0].content }}", "tool x"),
        ("<|turn{{ messages[0].content }}turn|>", "café"),
        ("a<|right|>{{ messages[0].content }}", "\n\nb"),
        ("a<|right|>{{ messages[0].content }}", "  x"),
        ("{{ messages[0].content }}<|left|>b", "a\n\n"),
        ("{{ messages[0].content }}<|both|>\n\nb", " \n\n"),
        ("<think>{{ messages[0].content }}<|both|> <think>", " <think> "),
        ("{{ messages[0].content }}<|word|>", "a"),
        ("{{ messages[0].content }}<|norm|>a", "é"),
        ("{{ messages[0].content }}<|line|>\na", "tool"),
    ],
)
def test_text_next_to_a_control_token_is_that_of_transformers(
    family: str, template: str, content: str
) -> None:
    text = text_of(family, template)
    assert encode_chat(text, said(content)) == oracle(text, said(content))


ORDINARY = [text for text in TEXTS if text not in dict(CONTROL)]
ANY = st.lists(st.sampled_from(TEXTS), max_size=5).map("".join)


@pytest.mark.parametrize("family", FAMILY)
@examples(150)
@given(ANY, st.lists(st.sampled_from(ORDINARY), max_size=4).map("".join), ANY)
@example("", " ", "<|norm|>")
@example("", "  ", "<|norm|>")
@example("", "a ", "<|norm|>a")
@example("turn|>", " ", " <|norm|>")
@example("<|norm|>", " ", "<|norm|>")
@example("<|right|>", " ", "<|norm|>")
@example("", "\u2581", "<|norm|>")
def test_any_conversation_without_control_tokens_is_that_of_transformers(
    family: str, begin: str, content: str, end: str
) -> None:
    text = text_of(family, f"{{{{ {begin!r} + messages[0].content + {end!r} }}}}")
    messages = said(content)
    if has_part_in_a_control_token(begin, content, end):
        return
    assert encode_chat(text, messages) == oracle(text, messages)


def has_part_in_a_control_token(begin: str, content: str, end: str) -> bool:
    """Return whether a control token's text lies across the edges of a message, or in it."""
    whole = begin + content + end
    for name, _ in CONTROL:
        at = whole.find(name)
        while at >= 0:
            if at < len(begin) + len(content) and at + len(name) > len(begin):
                return True
            at = whole.find(name, at + 1)
    return False


@pytest.mark.parametrize("family", FAMILY)
@examples(150)
@given(st.data())
def test_no_message_becomes_part_of_a_control_token(family: str, data: st.DataObject) -> None:
    halves = [half for name, _ in CONTROL for half in (name[:3], name[3:], name)]
    pieces = st.lists(st.sampled_from([*halves, *TEXTS]), max_size=5).map("".join)
    begin, content, end = data.draw(pieces), data.draw(pieces), data.draw(pieces)
    text = text_of(family, f"{{{{ {begin!r} + messages[0].content + {end!r} }}}}")
    assert text.tokenizer is not None
    control = control_tokens(text.tokenizer)
    names = [name for name, _ in CONTROL]
    try:
        ids = encode_chat(text, said(content))
    except InvalidArgument:  # a message that would change the template's own tokens
        return
    found = [control[i].content for i in ids if i in control]
    # At most as often as the template itself writes it.
    written = [begin, end] if content else [begin + end]
    for name in names:
        assert found.count(name) <= sum(text.count(name) for text in written)


def test_a_token_that_appears_by_normalization_is_plain_text_in_a_message() -> None:
    text = text_of("qwen3", "{{ messages[0].content }}<|norm|>")
    assert text.tokenizer is not None
    text.tokenizer.normalizer = normalizers.Lowercase()
    norm = text.tokenizer.token_to_id("<|norm|>")
    assert encode_chat(text, said("a <|NORM|> b")).count(norm) == 1
    assert encode_chat(text, said("a <|norm|> b")).count(norm) == 1


def test_a_space_that_normalization_adds_to_a_token_is_not_encoded_again() -> None:
    """Where a message spells a control token, the text between the template's own is encoded."""
    text = text_of("sentencepiece", "{{ messages[0].content }} <|norm|>")
    assert text.tokenizer is not None
    norm = text.tokenizer.token_to_id("<|norm|>")
    spelled = encode_chat(text, said("a<|left|>b"))
    plain = PlainEncoder(text.tokenizer)
    assert spelled == [*plain.encode("a<|left|>b"), norm]
    assert encode_chat(text, said("a<|left|>b\n")) == [*plain.encode("a<|left|>b\n"), norm]


def test_a_session_says_that_its_parts_differ_next_to_a_control_token() -> None:
    template = (
        "{% for m in messages %}<|turn\n{{ m.role }}\n{{ m.content }}turn|>{% endfor %}"
        "{% if add_generation_prompt %}<|turn\nassistant\n{% endif %}"
    )
    text = text_of("qwen3", template)
    assert text.tokenizer is not None
    ends = frozenset({text.tokenizer.token_to_id("turn|>")})
    turns = detect_turn_format(dataclasses.replace(text, end_token_ids=ends))
    assert "cannot be split between messages, for example around 'tool'" in turns.difference
    apart = dataclasses.replace(text, chat_template=template.replace("turn|>", " turn|>"))
    assert detect_turn_format(dataclasses.replace(apart, end_token_ids=ends)).is_exact
