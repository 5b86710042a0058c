"""The options that are numbers, with their ranges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, get_type_hints

from sinkstream.request.options import OPTIONS, Option, StreamOptions
from sinkstream.request.value_kinds import Integer, Number

_Kind = TypeVar("_Kind", Integer, Number)


def ranges_of(
    kind: type[_Kind], hint: Any, options: Mapping[str, Option], types: Mapping[str, Any]
) -> dict[str, _Kind]:
    """Return the ranges of all options with a type: a kind of its own would leave one untested."""
    found = {name: made.kind for name, made in options.items() if isinstance(made.kind, kind)}
    typed = {name for name, declared in types.items() if declared in (hint, hint | None)}
    assert found.keys() == typed, f"declared as {hint} or as {kind}, but not as both"
    return found


TYPES = get_type_hints(StreamOptions)
NUMBERS = ranges_of(Number, float, OPTIONS, TYPES)
INTEGERS = ranges_of(Integer, int, OPTIONS, TYPES)
