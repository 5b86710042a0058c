"""The `thinking` for `Model.stream` that a request asks for, in the forms that clients use."""

from __future__ import annotations

from typing import Any

from sinkstream.host import Host
from sinkstream.server.errors import invalid
from sinkstream.server.requests import ChatRequest
from sinkstream.text.templates.chat_template import compile_template
from sinkstream.text.thinking import Thinking, reads_thinking

_KWARGS = "chat_template_kwargs"
_SWITCHES = ("enable_thinking", "thinking")


def thinking_of_chat(host: Host, body: ChatRequest) -> Thinking:
    """Return what a chat request says; None if the model's chat template does not read it.

    Raises:
        ApiError: A value has the wrong type.
        InvalidArgument: The chat template has a syntax error.
    """
    kwargs = body.chat_template_kwargs or {}
    effort = kwargs.get("reasoning_effort", body.reasoning_effort)
    switch = next((kwargs[name] for name in _SWITCHES if name in kwargs), None)
    _check(effort, str, "reasoning_effort", _KWARGS)
    _check(switch, bool, "enable_thinking", _KWARGS)
    return _as_read(host, effort, switch)


def thinking_of_response(host: Host, reasoning: dict[str, Any] | None) -> Thinking:
    """Return what the `reasoning` of a response says, in the same way.

    Raises:
        ApiError: `effort` is not a string.
        InvalidArgument: The chat template has a syntax error.
    """
    effort = (reasoning or {}).get("effort")
    _check(effort, str, "effort", "reasoning")
    return _as_read(host, effort, None)


def _as_read(host: Host, effort: str | None, switch: bool | None) -> Thinking:
    source = host.text.chat_template
    if source is None:
        return None
    names = compile_template(source).names
    if effort == "none" or switch is False:
        return False if reads_thinking(names, False) else None
    if effort is not None and reads_thinking(names, effort):
        return effort
    return switch if reads_thinking(names, switch) else None


def _check(value: Any, kind: type, name: str, param: str) -> None:
    if value is not None and not isinstance(value, kind):
        word = "a string" if kind is str else "true or false"
        raise invalid(f"body: `{name}` in `{param}` must be {word}.", param)
