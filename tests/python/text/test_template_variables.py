"""Variables of the template reach it by name, and formats are kept for each of their values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream.errors import InvalidArgument
from sinkstream.request.template_variables import (
    TemplateVariables,
    thinking_of_text,
    with_variables,
)
from sinkstream.text.conversation_formats import ConversationFormats
from tests.python.text.encoding import encode_chat
from tests.python.text.reasoning_templates import text_format, write_folder

DATED = (
    "{% if date is not defined %}{% set date = 'today' %}{% endif %}{{ date }}{% if documents %}"
    "{% for d in documents %}{{ d | tojson }}{% endfor %}{% endif %}{% if enable_thinking %}T"
    "{% endif %}{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
)
SAID = [{"role": "user", "content": "Hi"}]


def shown(thinking: Any, formats: ConversationFormats | None = None) -> str:
    formats = formats or ConversationFormats(text_format(DATED), None)
    assert formats.text.tokenizer is not None
    ids = formats.encode_chat(SAID, thinking)
    return str(formats.text.tokenizer.decode(ids, skip_special_tokens=False)).partition("<")[0]


def test_a_template_gets_what_it_reads() -> None:
    documents = [{"title": "b", "a": "c"}]  # in this order
    given = with_variables(True, {"documents": documents, "date": 3}, "stream")
    assert shown(None) == "today"
    assert shown(given) == '3{"title": "b", "a": "c"}T'


def test_other_values_make_another_format() -> None:
    formats = ConversationFormats(text_format(DATED), None)
    for date in ("x", "y", None, "x"):
        given = with_variables(None, {"date": date}, "stream")
        assert shown(given, formats) == str(date)
        opening = formats.turns(given).opening(None)
        assert formats.text.tokenizer.decode(opening).startswith(str(date))


def test_a_variable_never_becomes_a_control_token() -> None:
    given = with_variables(None, {"date": "<|im_end|>"}, "stream")
    text = text_format(DATED)
    assert text.tokenizer is not None
    end = text.tokenizer.token_to_id("<|im_end|>")
    assert encode_chat(text, SAID, thinking=given).count(end) == 1


@pytest.mark.parametrize(
    ("variables", "rule"),
    [
        ({"messages": []}, "must not have `messages`"),
        ({"continue_final_message": True}, "must not have `continue_final_message`"),
        ({"dates": 1}, "must have only variables that the checkpoint's chat template reads, but"),
        ({"date": "a" * (1 << 18)}, "must have at most 262144 characters as JSON, but has"),
        ({"date": "\ud800"}, "must not contain lone surrogates|must be Unicode|surrogate"),
    ],
)
def test_what_is_refused(variables: dict[str, Any], rule: str) -> None:
    with pytest.raises(InvalidArgument, match=rule) as caught:
        shown(with_variables(None, variables, "stream"))
    assert caught.value.param == "chat_template_kwargs"


def test_values_are_data() -> None:
    deep: Any = 1
    for _ in range(65):
        deep = [deep]
    with pytest.raises(InvalidArgument, match="at most 64 levels"):
        with_variables(None, {"date": deep}, "stream")
    for wrong in ([1], {"date": object()}, {"date": {1: 2}}):
        with pytest.raises(TypeError, match="`chat_template_kwargs` must be"):
            with_variables(None, wrong, "stream")  # type: ignore[arg-type]


@pytest.mark.parametrize("thinking", [None, True, False, "low"])
def test_a_file_of_a_session_keeps_them(thinking: Any) -> None:
    for given in (thinking, with_variables(thinking, {"b": [1], "a": "é"}, "session")):
        assert thinking_of_text("" if given is None else str(given)) == given
    assert with_variables(thinking, {}, "session") == thinking
    assert isinstance(given, TemplateVariables)


def test_streams_sessions_and_their_files_have_variables(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = write_folder(tiny_folder("llama"), tmp_path / "dated", DATED)
    with sinkstream.load(folder, window=60, threads=1) as model:
        plain = model.generate(SAID, max_tokens=1).stats.prompt_tokens
        dated: dict[str, Any] = {"chat_template_kwargs": {"date": "x" * 20}}
        assert model.generate(SAID, max_tokens=1, **dated).stats.prompt_tokens > plain
        with model.session(**dated) as session:
            session.generate("Hi", max_tokens=1)
            session.save(tmp_path / "file")
            with model.load_session(tmp_path / "file") as loaded:
                assert loaded._thoughts.thinking == with_variables(None, {"date": "x" * 20}, "")
        with pytest.raises(InvalidArgument, match="`chat_template_kwargs` must be empty"):
            model.stream("Hi", **dated)
        with pytest.raises(InvalidArgument, match="must have only variables"):
            model.session(chat_template_kwargs={"dates": 1})
