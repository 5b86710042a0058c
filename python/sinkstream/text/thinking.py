"""Whether a model thinks before it replies: the variables that tell a chat template."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sinkstream.errors import InvalidArgument
from sinkstream.request.checks import ArgumentName

Thinking = bool | str | None
"""Whether to think, or with which effort; None leaves it to the template."""

SWITCHES = ("enable_thinking", "thinking")
"""Variables of chat templates that turn thinking on and off."""
_EFFORT = "reasoning_effort"
_MAX_LETTERS = 20


def check_thinking(thinking: Any, call: str) -> Thinking:
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


def reads_thinking(names: Collection[str], thinking: Thinking) -> bool:
    """Return whether a template with these names has a variable for such a value."""
    wanted = (_EFFORT,) if isinstance(thinking, str) else SWITCHES
    return thinking is None or any(name in names for name in wanted)


def thinking_variables(
    names: Collection[str], thinking: Thinking, argument: ArgumentName
) -> dict[str, bool | str]:
    """Return the variables of a template.

    Args:
        names: The names that the template refers to.
        thinking: As `check_thinking` returns it.
        argument: The argument that contains the conversation, for errors.

    Raises:
        InvalidArgument: The template has no such variable.
    """
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
    return {**switches, _EFFORT: thinking} if isinstance(thinking, str) else switches
