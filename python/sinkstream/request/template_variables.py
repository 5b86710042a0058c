"""Variables of a chat template that a request sets by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sinkstream.errors import InvalidArgument
from sinkstream.request.checks import check_unicode

KWARGS = "chat_template_kwargs"
"""The argument and the field of a request that set variables by name, as in transformers."""
OWN_FIELDS = ("add_generation_prompt", "continue_final_message", "messages", "tools")
"""Variables that belong to other arguments of a request."""
_MAX_DEPTH = 64
_MAX_CHARACTERS = 1 << 18  # as for tools: the formats of recent requests are kept


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


def with_variables(
    thinking: bool | str | None, variables: Mapping[str, Any] | None, call: str
) -> bool | str | TemplateVariables | None:
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
        raise refused_variables(call, f"must not have `{own}`, which has a field of its own")
    # Only these names are sorted: a template may write what is within a value in its order.
    named = json.dumps(dict(sorted(_data(variables, call, 0).items())), ensure_ascii=False)
    if len(named) > _MAX_CHARACTERS:
        raise refused_variables(
            call, f"must have at most {_MAX_CHARACTERS} characters as JSON, but has {len(named)}"
        )
    return TemplateVariables(thinking, named)


def _data(value: Any, call: str, depth: int) -> Any:
    """Return JSON data as plain data: templates get no subclasses, which may carry methods."""
    if depth > _MAX_DEPTH:
        raise refused_variables(call, f"must be nested at most {_MAX_DEPTH} levels deep")
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


def refused_variables(call: str, rule: str) -> InvalidArgument:
    """Return the error for variables that break a rule."""
    return InvalidArgument(f"{call}: `{KWARGS}` {rule}.", param=KWARGS)
