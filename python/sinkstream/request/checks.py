"""Checks of arguments: one sentence for each wrong value, TypeError for each wrong type."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from sinkstream.errors import InvalidArgument


def as_int(where: str, name: str, value: Any, low: int, high: int) -> int:
    """Return a whole number in [low, high]. A bool is not a number; numpy's integers are.

    Raises:
        TypeError: It is no whole number.
        InvalidArgument: It is out of range.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{where}: `{name}` must be an int, but is {_kind(value)}.")
    number = operator.index(value)
    if not low <= number <= high:
        raise InvalidArgument(
            f"{where}: `{name}` must be in [{low}, {high}], but is {number}.", param=name
        )
    return number


def as_bool(where: str, name: str, value: Any) -> bool:
    """Return a bool.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{where}: `{name}` must be a bool, but is {_kind(value)}.")
    return value


def as_choice(where: str, name: str, value: Any, choices: Sequence[str]) -> Any:
    """Return one of the given words.

    Raises:
        TypeError: It is no text.
        InvalidArgument: It is another word.
    """
    if not isinstance(value, str):
        raise TypeError(f"{where}: `{name}` must be text, but is {_kind(value)}.")
    if value not in choices:
        known = ", ".join(f'"{choice}"' for choice in sorted(choices))
        raise InvalidArgument(
            f'{where}: `{name}` must be one of {known}, but is "{value}".', param=name
        )
    return value


def _kind(value: Any) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"
