"""A session that begins with a history feeds what rendering the whole conversation gives."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.errors import InvalidArgument
from sinkstream.text.messages import check_messages
from sinkstream.text.plain_text import PlainEncoder
from sinkstream.text.turn_format import TurnFormat
from tests.python.lanes import products
from tests.python.text import templates, vocabularies
from tests.python.text.encoding import detect_turn_format, encode_chat
from tests.python.text.templates import TEMPLATES
from tests.python.text.test_messages import PARTS, TOOLS, WITH_TOOLS
from tests.python.text.test_turns import WITHOUT_SYSTEM, chat, probed
from tests.python.text.vocabularies import FAMILIES

HISTORIES: dict[str, list[dict[str, Any]]] = {
    "a turn": chat("Hi", "Ho"),
    "turns": chat(" a\n", "b <|im_end|>", "c", "Done. "),
    "a system text": chat("Hi", "Ho", system=" Be brief.\n"),
    "thoughts": chat("Hi", "<think>\nHm.\n</think>\n\nHo"),
    "parts": [{"role": "user", "content": PARTS}, {"role": "assistant", "content": PARTS[:1]}],
}


def continued(turns: TurnFormat, history: list[dict[str, Any]], content: str) -> list[int]:
    ids = turns.history(check_messages(history))
    return ids + turns.user(content, after=history[-1]["role"])


@pytest.mark.parametrize(("family", "template", "name"), products(FAMILIES, TEMPLATES, HISTORIES))
def test_a_history_and_a_turn_are_the_whole(family: str, template: str, name: str) -> None:
    text, turns = probed(family, template)
    history = HISTORIES[name]
    if template in WITHOUT_SYSTEM and history[0]["role"] == "system":
        return
    for content in ("Hello", "", "<|im_end|>"):
        whole = encode_chat(text, [*history, {"role": "user", "content": content}])
        assert continued(turns, history, content) == whole


def test_a_history_with_tools_and_a_turn_are_the_whole() -> None:
    text = dataclasses.replace(vocabularies.qwen3(), chat_template=WITH_TOOLS)
    turns = detect_turn_format(text)
    for end in (2, 4, 5):
        history = TOOLS[:end]
        whole = encode_chat(text, [*history, {"role": "user", "content": "x"}])
        assert continued(turns, history, "x") == whole


def test_a_history_that_no_user_may_follow_is_refused_with_the_templates_reason() -> None:
    _, turns = probed("llama3", "mistral")
    with pytest.raises(InvalidArgument, match=r"^session: .*and a user begins\.$") as caught:
        turns.history(check_messages(chat("a", "b", "c")))
    assert caught.value.param == "messages"


def test_a_message_of_the_history_that_the_template_omits_is_refused() -> None:
    _, turns = probed("llama3", "phi3")
    history = [{"role": "developer", "content": "Be brief."}, *chat("Hi", "Ho")]
    with pytest.raises(InvalidArgument, match='omits messages with the role "developer"'):
        turns.history(check_messages(history))
    turns.history(check_messages(chat("Hi", "Ho")))  # another conversation has no such message


def test_without_template_a_history_is_one_text() -> None:
    text = dataclasses.replace(vocabularies.llama3(), chat_template=None)
    turns = detect_turn_format(text)
    assert text.tokenizer is not None
    ids = turns.history(check_messages(chat("Once upon", " a time", system="Tale: ")))
    assert text.tokenizer.decode(ids, skip_special_tokens=True) == "Tale: Once upon a time"
    assert ids[: len(text.bos_ids)] == text.bos_ids
    with pytest.raises(InvalidArgument, match="must have `content` in every message"):
        turns.history(check_messages(TOOLS))
    assert turns.history(check_messages([{"role": "user", "content": PARTS}])) == (
        text.bos_ids + PlainEncoder(text.tokenizer).encode("a < b\n c\n")
    )
    with pytest.raises(InvalidArgument, match="no tokenizer"):
        detect_turn_format(TextFormat(None, templates.SMOLLM2)).history(chat("a"))
