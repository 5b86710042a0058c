"""Which form a template reads, also if two threads ask at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from jinja2 import Template

from sinkstream.errors import InvalidArgument
from sinkstream.request.checks import PROMPT
from sinkstream.text.message_forms import ArgumentForms, ContentForms

CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
CALLING = [{"role": "assistant", "content": "", "tool_calls": [CALL]}]
SAID = [{"role": "user", "content": "hello"}]


def in_another_thread(call: Any) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join(30)
    return found[0]


def test_a_second_thread_renders_arguments_while_the_first_finds_out_their_form() -> None:
    """The template reads JSON text."""
    second: list[Any] = []

    def render(messages: Sequence[Any]) -> str:
        if threading.current_thread() is threading.main_thread() and not second:
            second.append(in_another_thread(lambda: forms.apply(CALLING, PROMPT)))
        given = messages[-1]["tool_calls"][0]["function"]["arguments"]
        return given if isinstance(given, str) else ""

    forms = ArgumentForms("tool_calls", render)
    assert forms.apply(CALLING, PROMPT) == CALLING
    assert second == [CALLING]


def test_a_second_thread_renders_contents_while_the_first_finds_out_their_form() -> None:
    """The template reads parts."""
    second: list[Any] = []

    def render(messages: Sequence[Any]) -> str:
        if threading.current_thread() is threading.main_thread() and not second:
            second.append(in_another_thread(lambda: forms.apply(SAID)))
        given = messages[-1]["content"]
        return "" if isinstance(given, str) else str(given[0]["text"])

    forms = ContentForms("text", render)
    in_parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    assert forms.apply(SAID) == in_parts
    assert second == [in_parts]


@pytest.mark.parametrize(
    ("arguments", "form"),
    [
        ("{{ a | tojson }}", "object"),
        ("{{ a }}", "text"),
        ("{{ a if a is string else a | tojson }}", "either"),
        ("{% if a is mapping %}{% for k, v in a.items() %}{{ k }}={{ v }}{% endfor %}"
         "{% else %}{{ a }}{% endif %}", "object"),
        ("{% for k, v in a.items() %}{{ k }}={{ v }}{% endfor %}", "object"),
    ],
)  # fmt: skip
def test_a_mapping_is_what_a_template_gets_that_tells_it_from_text(
    arguments: str, form: str
) -> None:
    template = Template("{% set a = messages[1].tool_calls[0].function.arguments %}" + arguments)

    def render(messages: Sequence[Any]) -> str:
        try:
            return template.render(messages=messages)
        except Exception:
            raise InvalidArgument("it fails", param="prompt") from None

    forms = ArgumentForms("tool_calls", render)
    found = forms.apply(CALLING, PROMPT)[0]["tool_calls"][0]["function"]["arguments"]
    assert forms._form() == form
    assert found == ({"a": 1} if form == "object" else '{"a": 1}')
