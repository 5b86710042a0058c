"""Which form a template reads, also if two threads ask at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from jinja2 import Template

from sinkstream.errors import InvalidArgument
from sinkstream.request.checks import PROMPT
from sinkstream.text.message_forms import ArgumentForms, ContentForms

CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
CALLING = [{"role": "assistant", "content": "", "tool_calls": [CALL]}]
SAID = [{"role": "user", "content": "hello"}]


def renderer(source: str) -> Callable[[Sequence[Any]], str]:
    """Return what renders messages with a template."""
    template = Template(source)

    def render(messages: Sequence[Any]) -> str:
        try:
            return template.render(messages=messages)
        except Exception:
            raise InvalidArgument("it fails", param="prompt") from None

    return render


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
    source = "{% set a = messages[1].tool_calls[0].function.arguments %}" + arguments
    forms = ArgumentForms("tool_calls", renderer(source))
    found = forms.apply(CALLING, PROMPT)[0]["tool_calls"][0]["function"]["arguments"]
    assert forms._form() == form
    assert found == ({"a": 1} if form == "object" else '{"a": 1}')


@pytest.mark.parametrize(
    ("read", "is_needed"),
    [
        ("{{ m.content.split('</think>')[-1] }}", True),  # Qwen3
        # QwQ: only of messages before the last
        ("{{ m.content.strip() if not loop.last else '' }}", True),
        ("{% if m.content %}{{ m.content.strip() }}{% endif %}", False),
        ("{{ m.content.strip() if m.content is defined else 'no content' }}", False),
        ("{% if m.role != 'user' %}{{ m.refused.strip() }}{% endif %}", False),
    ],
)
def test_a_call_gets_empty_content_where_the_template_needs_some(
    read: str, is_needed: bool
) -> None:
    loop = "{% for m in messages %}" + read + "{% endfor %}"
    forms = ContentForms("text", renderer(loop))
    call = {"role": "assistant", "tool_calls": [CALL]}
    (found,) = forms.apply([call])
    assert found == (call | {"content": ""} if is_needed else call)
