"""Variables of a chat template that a request sets: whether to think, and others by name."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sinkstream.errors import InvalidArgument
from sinkstream.request.checks import ArgumentName, check_unicode

KWARGS = "chat_template_kwargs"
"""The argument and the field of a request that set variables by name, as in transformers."""
OWN_FIELDS = ("add_generation_prompt", "continue_final_message", "messages", "tools")
"""Variables that belong to other arguments of a request."""
_MAX_DEPTH = 64
_MAX_CHARACTERS = 1 << 18  # as for tools: the formats of recent requests are kept
SWITCHES = ("enable_thinking", "thinking")
"""Variables of chat templates that turn thinking on and off."""
EFFORT = "reasoning_effort"
_MAX_LETTERS = 20  # of an effort


@dataclass(frozen=True, slots=True)
class TemplateVariables:
    """`thinking`, and variables that a request sets by name."""

    thinking: bool | str | None
    named: str
    """As JSON with the names sorted: equal texts are equal variables."""

    def values(self) -> dict[str, Any]:
        """Return the variables."""
        values: dict[str, Any] = json.loads(self.named)
        return values

    def __str__(self) -> str:
        return json.dumps([self.thinking, self.named])


Thinking = bool | str | TemplateVariables | None
"""Whether to think, or with which effort; None leaves it to the template. Also with variables."""


def with_variables(
    thinking: bool | str | None, variables: Mapping[str, Any] | None, call: str
) -> Thinking:
    """Return `thinking` together with variables that are set by name.

    Raises:
        TypeError: They are not a mapping of JSON values.
        InvalidArgument: They are too large, or have a name that belongs to another argument.
    """
    if not variables:
        return thinking
    if not isinstance(variables, Mapping):
        raise TypeError(
            f"{call}: `{KWARGS}` must be a mapping, but is of type {type(variables).__name__}."
        )
    own = next((name for name in OWN_FIELDS if name in variables), None)
    if own is not None:
        raise _refused(call, f"must not have `{own}`, which has a field of its own")
    # Only these names are sorted: a template may write what is within a value in its order.
    named = json.dumps(dict(sorted(_data(variables, call, 0).items())), ensure_ascii=False)
    if len(named) > _MAX_CHARACTERS:
        raise _refused(
            call, f"must have at most {_MAX_CHARACTERS} characters as JSON, but has {len(named)}"
        )
    return TemplateVariables(thinking, named)


def _data(value: Any, call: str, depth: int) -> Any:
    """Return JSON data as plain data: templates get no subclasses, which may carry methods."""
    if depth > _MAX_DEPTH:
        raise _refused(call, f"must be nested at most {_MAX_DEPTH} levels deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        check_unicode(f"{call}: `{KWARGS}`", value, KWARGS)
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, list | tuple):
        return [_data(part, call, depth + 1) for part in value]
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {_data(k, call, depth): _data(part, call, depth + 1) for k, part in value.items()}
    raise TypeError(
        f"{call}: `{KWARGS}` must be JSON data with names as keys, but has a value of type "
        f"{type(value).__name__}."
    )


def _refused(call: str, rule: str) -> InvalidArgument:
    """Return the error for variables that break a rule."""
    return InvalidArgument(f"{call}: `{KWARGS}` {rule}.", param=KWARGS)


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
            raise _refused(
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
