"""The tools of a request, checked: what a model may call, and whether it must."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

from sinkstream.errors import InvalidArgument
from sinkstream.request.checks import check_unicode

MAX_TOOLS = 128
# Of all definitions as JSON. The formats of conversations with the latest tools are kept.
MAX_CHARACTERS = 1 << 18
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_DEPTH = 64  # of the data in a tool
_WORDS = ("auto", "none", "required")

Choice = Literal["auto", "none", "required"]


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request."""

    definitions: tuple[Mapping[str, Any], ...]
    """As chat templates read them: `{"type": "function", "function": {…}}`."""
    choice: Choice = "auto"
    """Whether the reply may call tools, never does, or must."""
    allowed: tuple[str, ...] = ()
    """The names that it may call."""
    is_parallel: bool = True
    """Whether it may make several calls."""
    strict: frozenset[str] = frozenset()
    """The names of those whose schemas must be enforced as a whole."""
    is_generic: bool = False
    """Whether tools have the generic form even if the chat template has one of its own."""

    @property
    def key(self) -> str:
        """Return a text: two requests with the same text have the same tools in their prompts."""
        text = json.dumps(self.definitions, ensure_ascii=False, separators=(",", ":"))
        return f"generic {text}" if self.is_generic else text

    @property
    def as_given(self) -> list[dict[str, Any]]:
        """Return the definitions with `strict`."""
        return [
            {**one, "function": {**one["function"], "strict": True}}
            if one["function"]["name"] in self.strict
            else dict(one)
            for one in self.definitions
        ]

    def schema_of(self, name: str) -> dict[str, Any]:
        """Return the JSON schema of a tool's arguments."""
        function = next(
            one["function"] for one in self.definitions if one["function"]["name"] == name
        )
        schema: Mapping[str, Any] = function.get("parameters") or {
            "properties": {},
            "additionalProperties": False,
        }
        return {"type": "object", **schema}


def check_tools(
    tools: Any, tool_choice: Any = None, parallel_tool_calls: Any = None, *, call: str = "stream"
) -> Tools | None:
    """Return the tools of a request; None if it has none.

    Args:
        tools: A list of functions in OpenAI's form. None and [] mean none.
        tool_choice: "auto", "none", "required", a named function, or allowed tools, in OpenAI's
            form. None is "auto".
        parallel_tool_calls: Whether a reply may make several calls. None is True, but False if it
            must call and only one function is allowed.
        call: The call whose arguments these are, for errors.

    Raises:
        TypeError: A value has the wrong type.
        InvalidArgument: A tool is malformed, two have the same name, there are too many, or
            `tool_choice` names none of them.
    """
    if parallel_tool_calls is not None and not isinstance(parallel_tool_calls, bool):
        raise TypeError(
            f"{call}: `parallel_tool_calls` must be a bool or None, but is of type "
            f"{type(parallel_tool_calls).__name__}."
        )
    if tools is None or (isinstance(tools, list | tuple) and not tools):
        if tool_choice not in (None, "auto", "none"):
            raise _refusal(call, "tool_choice", "needs `tools`, but there are none")
        return None
    definitions = _definitions(tools, call)
    names = tuple(one["function"]["name"] for one in definitions)
    choice, allowed = _choice(tool_choice, names, call)
    # A small model would call a function that it must call again and again.
    is_forced = choice == "required" and len(allowed) == 1
    is_parallel = parallel_tool_calls is True if is_forced else parallel_tool_calls is not False
    strict = frozenset(
        name
        for name, tool in zip(names, tools, strict=True)
        if tool["function"].get("strict") is True
    )
    found = Tools(definitions, choice, allowed, is_parallel, strict)
    if (size := len(found.key)) > MAX_CHARACTERS:
        raise _refusal(
            call, "tools", f"must have at most {MAX_CHARACTERS} characters as JSON, but has {size}"
        )
    return found


def _refusal(call: str, name: str, rule: str) -> InvalidArgument:
    return InvalidArgument(f"{call}: `{name}` {rule}.", param=name)


# ---- tools ---------------------------------------------------------------------------------------


def _definitions(tools: Any, call: str) -> tuple[Mapping[str, Any], ...]:
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Sequence):
        raise TypeError(
            f"{call}: `tools` must be a list of functions, but is of type {type(tools).__name__}."
        )
    if len(tools) > MAX_TOOLS:
        raise _refusal(call, "tools", f"must have at most {MAX_TOOLS} tools, but has {len(tools)}")
    found = tuple(_definition(tool, i, call) for i, tool in enumerate(tools))
    names = [one["function"]["name"] for one in found]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise _refusal(call, "tools", f"must have different names, but two are named {name!r}")
    return found


def _definition(tool: Any, index: int, call: str) -> Mapping[str, Any]:
    where = f"{call}: tool {index} of `tools`"
    if not isinstance(tool, Mapping):
        raise TypeError(f"{where} must be a mapping, but is of type {type(tool).__name__}.")
    if tool.get("type") != "function":
        raise InvalidArgument(
            f'{where}: `type` must be "function", but is {repr(tool.get("type"))[:40]}.',
            param="tools",
        )
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise TypeError(
            f"{where}: `function` must be a mapping, but is of type {type(function).__name__}."
        )
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{where}: `name` must be 1 to 64 ASCII letters, digits, underscores or hyphens, but "
            f"is {repr(name)[:80]}.",
            param="tools",
        )
    description = function.get("description")
    if description is not None and not isinstance(description, str):
        raise TypeError(
            f"{where}: `description` must be a string, but is of type {type(description).__name__}."
        )
    _check_schema(function.get("parameters"), where)
    kept = {key: value for key, value in function.items() if value is not None and key != "strict"}
    return {"type": "function", "function": _plain(kept, where, 0)}


def _check_schema(schema: Any, where: str) -> None:
    if schema is None:
        return
    if not isinstance(schema, Mapping):
        raise TypeError(
            f"{where}: `parameters` must be a JSON schema, but is of type {type(schema).__name__}."
        )
    if schema.get("type", "object") != "object":
        raise InvalidArgument(
            f'{where}: `parameters` must be a schema of the type "object", but has the type '
            f"{repr(schema['type'])[:40]}.",
            param="tools",
        )


def _plain(value: Any, where: str, depth: int) -> Any:
    """Return plain data. Templates get no subclasses, which may carry methods."""
    if depth > _MAX_DEPTH:
        raise InvalidArgument(
            f"{where} must be nested at most {_MAX_DEPTH} levels deep, but is nested deeper.",
            param="tools",
        )
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if not value.isascii():
            check_unicode(f"{where}: a string", value, "tools")
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        if not isfinite(value):
            raise TypeError(f"{where} must hold only JSON, but holds {value}.")
        return float.__float__(value)
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                kind = type(name).__name__
                raise TypeError(f"{where} must hold only JSON, but has a key of type {kind}.")
        return {
            _plain(name, where, depth): _plain(part, where, depth + 1)
            for name, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(part, where, depth + 1) for part in value]
    raise TypeError(
        f"{where} must hold only JSON, but holds a value of type {type(value).__name__}."
    )


# ---- the choice among them -----------------------------------------------------------------------


def _choice(value: Any, names: tuple[str, ...], call: str) -> tuple[Choice, tuple[str, ...]]:
    if value is None:
        return "auto", names
    if isinstance(value, str):
        if value not in _WORDS:
            raise _refusal(
                call,
                "tool_choice",
                f'must be "auto", "none", "required" or a named function, but is {value[:40]!r}',
            )
        return value, names  # type: ignore[return-value]
    if not isinstance(value, Mapping):
        raise TypeError(
            f"{call}: `tool_choice` must be a string or a mapping, but is of type "
            f"{type(value).__name__}."
        )
    kind = value.get("type")
    if kind == "allowed_tools":
        return _allowed(value.get("allowed_tools", value), names, call)
    if kind != "function":
        raise _refusal(
            call,
            "tool_choice",
            f'must have the type "function" or "allowed_tools", but has {repr(kind)[:40]}',
        )
    return "required", (_named(value, names, call),)


def _allowed(value: Any, names: tuple[str, ...], call: str) -> tuple[Choice, tuple[str, ...]]:
    mode = value.get("mode") if isinstance(value, Mapping) else None
    tools = value.get("tools") if isinstance(value, Mapping) else None
    if mode not in ("auto", "required"):
        raise _refusal(
            call,
            "tool_choice",
            f'must have the mode "auto" or "required", but has {repr(mode)[:40]}',
        )
    if not isinstance(tools, list | tuple) or not tools:
        raise _refusal(call, "tool_choice", "must list at least 1 tool, but lists none")
    allowed = tuple(dict.fromkeys(_named(one, names, call) for one in tools))
    return mode, allowed


def _named(value: Any, names: tuple[str, ...], call: str) -> str:
    """Return the name in a reference to a function, from either of OpenAI's APIs."""
    inner = value.get("function", value) if isinstance(value, Mapping) else None
    name = inner.get("name") if isinstance(inner, Mapping) else None
    if name not in names:
        raise _refusal(
            call,
            "tool_choice",
            f"must name one of `tools`, but names {repr(name)[:80]}",
        )
    return str(name)
