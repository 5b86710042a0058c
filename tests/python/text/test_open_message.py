"""A last message that the reply continues has the ids that transformers gives it."""

from __future__ import annotations

from typing import Any

import pytest

from sinkstream.errors import InvalidArgument
from sinkstream.text.conversation_formats import ConversationFormats
from tests.python.text.encoding import detect_turn_format, encode_chat
from tests.python.text.reasoning_templates import EMPTIED, KEPT, OPENED, THINK, WRITTEN, text_format
from tests.python.text.templates import SMOLLM2, TEMPLATES
from tests.python.text.tool_templates import FORMATS

SOURCES = {
    **TEMPLATES, "written": WRITTEN, "opened": OPENED, "emptied": EMPTIED, "kept": KEPT,
    **{name: text.chat_template for name, text in FORMATS.items()},
}  # fmt: skip
TEXTS = ("It is", "It is ", " It", "\n\nIt\n", "", " ", "<think>a", "It <|im_end|>", "It isé")


def theirs(source: str, messages: list[dict[str, Any]]) -> list[int] | None:
    """Return transformers' ids; None if it refuses."""
    from transformers import PreTrainedTokenizerFast

    text = text_format(source, *THINK)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=text.tokenizer)
    try:
        ids: list[int] = tokenizer.apply_chat_template(
            messages, chat_template=source, continue_final_message=True, return_dict=False
        )
    except Exception:  # the template's operations may raise anything
        return None
    return ids


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_it_has_the_ids_of_transformers(name: str) -> None:
    pytest.importorskip("transformers")
    text = text_format(SOURCES[name], *THINK)
    for said in TEXTS:
        messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": said}]
        expected = None if "<|im_end|>" in said else theirs(SOURCES[name], messages)
        try:
            found = encode_chat(text, messages, is_open=True)
        except InvalidArgument:
            found = None
        if "<|im_end|>" not in said:
            assert found == expected, said
        elif found is not None:  # as plain text
            assert text.tokenizer.decode(found, skip_special_tokens=False).endswith(said)
            assert found[-1] != text.tokenizer.token_to_id("<|im_end|>")


@pytest.mark.parametrize("source", [WRITTEN, KEPT, SMOLLM2], ids=str.__len__)
def test_a_session_reads_the_same(source: str) -> None:
    text = text_format(source, *THINK)
    turns = detect_turn_format(text)
    for said in TEXTS:
        user, reply = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": said}
        parts = turns.opening(None) + turns.open_reply(user, reply, after=None)
        assert parts == encode_chat(text, [user, reply], is_open=True)


def test_parts_are_continued_as_a_string_is() -> None:
    text = text_format(SMOLLM2)
    user = {"role": "user", "content": "Hi"}
    parts = [{"type": "text", "text": "It"}, {"type": "text", "text": "is "}]
    assert encode_chat(
        text, [user, {"role": "assistant", "content": parts}], is_open=True
    ) == encode_chat(text, [user, {"role": "assistant", "content": "It\nis "}], is_open=True)


def test_a_growing_text_is_continued() -> None:
    text = text_format("")
    plain = ConversationFormats(type(text)(text.tokenizer, None), None).turns(None)
    user, reply = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": " you"}
    assert plain.open_reply(user, reply, after=None) == plain.request(user, reply, after=None)
