"""The variables of a chat template that a request sets: whether to think, and others by name."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from sinkstream.errors import InvalidArgument
from sinkstream.request.checks import ArgumentName
from sinkstream.request.template_variables import TemplateVariables, refused_variables

Thinking = bool | str | TemplateVariables | None
"""Whether to think, or with which effort; None leaves it to the template. Also with variables."""

SWITCHES = ("enable_thinking", "thinking")
"""Variables of chat templates that turn thinking on and off."""
EFFORT = "reasoning_effort"
_MAX_LETTERS = 20


def check_thinking(thinking: Any, call: str) -> bool | str | None:
    """Return the argument `thinking`.

    Raises:
        TypeError: It has the wrong type.
        InvalidArgument: It is a string that names no effort.
    """
    if thinking is None or isinstance(thinking, bool):
        return thinking
    if not isinstance(thinking, str):
        raise TypeError(
            f"{call}: `thinking` must be a bool, a string or None, but is of type "
            f"{type(thinking).__name__}."
        )
    if not (thinking.isascii() and thinking.isalpha() and len(thinking) <= _MAX_LETTERS):
        raise InvalidArgument(
            f'{call}: `thinking` must be an effort such as "low", of at most {_MAX_LETTERS} '
            f"letters, but is {thinking[:40]!r}.",
            param="thinking",
        )
    return str.__str__(thinking)


def thinking_of_text(text: str) -> Thinking:
    """Return what `str` has made of it; "" is None."""
    if text.startswith("["):
        return TemplateVariables(*json.loads(text))
    return {"": None, "True": True, "False": False}.get(text, text)


def named_variables(thinking: Thinking) -> str:
    """Return the variables that are set by name, as JSON; "" if there are none."""
    return thinking.named if isinstance(thinking, TemplateVariables) else ""


def reads_thinking(names: Collection[str], thinking: Thinking) -> bool:
    """Return whether a template that reads these variables has a variable for such a value."""
    if isinstance(thinking, TemplateVariables):
        thinking = thinking.thinking
    wanted = (EFFORT,) if isinstance(thinking, str) else SWITCHES
    return thinking is None or any(name in names for name in wanted)


def template_variables(
    names: Collection[str], thinking: Thinking, argument: ArgumentName
) -> dict[str, Any]:
    """Return the variables of a template.

    Args:
        names: The variables that the template reads.
        thinking: As `check_thinking` returns it.
        argument: The argument that contains the conversation, for errors.

    Raises:
        InvalidArgument: The template has no such variable.
    """
    if isinstance(thinking, TemplateVariables):
        named = thinking.values()
        if unread := sorted(named.keys() - set(names)):
            shown = ", ".join(f"`{name[:40]}`" for name in unread[:8])
            raise refused_variables(
                argument.call,
                "must have only variables that the checkpoint's chat template reads, but has "
                + shown,
            )
        return {**template_variables(names, thinking.thinking, argument), **named}
    if thinking is None:
        return {}
    if not reads_thinking(names, thinking):
        lacks = "setting for the effort" if isinstance(thinking, str) else "switch for thinking"
        raise InvalidArgument(
            f"{argument.call}: `thinking` must be None, but is {thinking!r}: the checkpoint's chat "
            f"template has no {lacks}.",
            param="thinking",
        )
    switches: dict[str, bool | str] = dict.fromkeys(SWITCHES, thinking is not False)
    return {**switches, EFFORT: thinking} if isinstance(thinking, str) else switches
