"""Checks of arguments: one sentence for each wrong value, TypeError for each wrong type."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sinkstream.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class ArgumentName:
    """An argument of a call. `str()` gives the beginning of every message about it."""

    call: str
    name: str

    def __str__(self) -> str:
        return f"{self.call}: `{self.name}`"


PROMPT = ArgumentName("stream", "prompt")
_SLICE = 1 << 20
"""Characters of a string that are looked at in one call, which holds the GIL."""


def as_int(where: str, name: str, value: Any, low: int, high: int) -> int:
    """Return an integer in [low, high]. A bool is not a number; numpy's integers are.

    Raises:
        TypeError: It is not an integer.
        InvalidArgument: It is out of range.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{where}: `{name}` must be an integer, but is {_kind(value)}.")
    number = operator.index(value)
    if not low <= number <= high:
        raise InvalidArgument(
            f"{where}: `{name}` must be in [{low}, {high}], but is {number}.", param=name
        )
    return number


def as_native_int(where: str, name: str, value: Any) -> int:
    """Return an integer for the core, which checks its range and knows the limits.

    Raises:
        TypeError: It is not an integer.
        InvalidArgument: It does not fit into 64 bits.
    """
    return as_int(where, name, value, -(1 << 63), (1 << 63) - 1)


def as_number(where: str, name: str, value: Any) -> float:
    """Return a float, including NaN and infinity.

    Raises:
        TypeError: It is not a number.
    """
    if isinstance(value, bool | str | bytes | bytearray) or not hasattr(value, "__float__"):
        raise TypeError(
            f"{where}: `{name}` must be a number, but is of type {type(value).__name__}."
        )
    try:
        return float(value)
    except OverflowError:  # an int beyond every float
        return math.inf if value > 0 else -math.inf


def as_bool(where: str, name: str, value: Any) -> bool:
    """Return a bool.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{where}: `{name}` must be a bool, but is {_kind(value)}.")
    return value


def as_choice(where: str, name: str, value: Any, choices: Sequence[str]) -> Any:
    """Return one of the given choices.

    Raises:
        TypeError: It is not a string.
        InvalidArgument: It is not among them.
    """
    if not isinstance(value, str):
        raise TypeError(f"{where}: `{name}` must be a string, but is {_kind(value)}.")
    if value not in choices:
        known = ", ".join(f'"{choice}"' for choice in sorted(choices))
        raise InvalidArgument(
            f'{where}: `{name}` must be one of {known}, but is "{value}".', param=name
        )
    return value


def as_strings(where: str, name: str, value: Any) -> list[str]:
    """Return one string, or a sequence of strings, as a list.

    Raises:
        TypeError: It is neither of these.
        InvalidArgument: A string is not Unicode.
    """
    strings = [value] if isinstance(value, str) else value
    if isinstance(strings, bytes | bytearray | Mapping) or not isinstance(strings, Sequence):
        raise TypeError(
            f"{where}: `{name}` must be a string or a sequence of strings, but is of type "
            f"{type(value).__name__}."
        )
    for string in strings:
        if not isinstance(string, str):
            raise TypeError(
                f"{where}: `{name}` must contain only strings, but contains "
                f"{type(string).__name__}."
            )
        check_unicode(f"{where}: `{name}`", string, name)
    return list(strings)


def as_text(where: str, name: str, value: Any) -> str:
    """Return a string.

    Raises:
        TypeError: It is not a string.
        InvalidArgument: It is not Unicode.
    """
    if not isinstance(value, str):
        raise TypeError(f"{where}: `{name}` must be a string, but is {_kind(value)}.")
    check_unicode(f"{where}: `{name}`", value, name)
    return str(value)


def check_unicode(where: str, string: str, param: str) -> None:
    """Refuse a string with a lone surrogate; `where` begins the sentence that says so.

    Raises:
        InvalidArgument: It has one.
    """
    at = lone_surrogate(string)
    if at is not None:
        raise InvalidArgument(
            f"{where} must be valid Unicode, but has the lone surrogate "
            f"U+{ord(string[at]):04X} at position {at}.",
            param=param,
        )


def lone_surrogate(string: str) -> int | None:
    """Return the position of the first lone surrogate in a string; None if it has none."""
    if string.isascii():  # a string knows that, however long it is
        return None
    for begin in range(0, len(string), _SLICE):
        try:
            string[begin : begin + _SLICE].encode()
        except UnicodeEncodeError as error:
            return begin + error.start
    return None


def as_ids(where: str, name: str, value: Any, vocab_size: int) -> list[int]:
    """Return token ids as a list.

    Raises:
        TypeError: They are not integers.
        InvalidArgument: One is not in [0, vocab_size).
    """
    if isinstance(value, str | bytes | bytearray | Mapping) or not hasattr(value, "__iter__"):
        raise TypeError(
            f"{where}: `{name}` must be token ids, but is of type {type(value).__name__}."
        )
    return [as_token_id(where, name, i, token, vocab_size) for i, token in enumerate(value)]


def as_token_id(where: str, name: str, index: int | None, value: Any, vocab_size: int) -> int:
    """Return an id of the vocabulary. Any integer type is accepted, but not bool.

    Args:
        where: The call, for errors.
        name: The argument that holds the id.
        index: Its index; None for the key of a mapping.
        value: The id.
        vocab_size: The bound.

    Raises:
        TypeError: It is not an integer.
        InvalidArgument: It is not in [0, vocab_size).
    """
    try:
        # `operator.index` would accept a tensor [1] as an id.
        if isinstance(value, bool) or getattr(value, "ndim", 0) > 0:
            raise TypeError
        token = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{where}: {_item(index, name)} must be a token id, an integer, but is of type "
            f"{type(value).__name__}."
        ) from None
    if not 0 <= token < vocab_size:
        raise not_in_vocabulary(where, name, index, token, vocab_size)
    return token


def not_in_vocabulary(
    where: str, name: str, index: int | None, token: int, vocab_size: int
) -> InvalidArgument:
    """Return the error for an id outside the vocabulary; arguments as for `as_token_id`."""
    return InvalidArgument(
        f"{where}: {_item(index, name)} must be a token id in [0, {vocab_size}), but is "
        f"{str(token)[:40]}.",
        param=name,
    )


def _item(index: int | None, name: str) -> str:
    return f"a key of `{name}`" if index is None else f"item {index} of `{name}`"


def as_bias(where: str, name: str, value: Any, vocab_size: int) -> dict[int, float]:
    """Return a number for each of some token ids.

    Raises:
        TypeError: It is not a mapping from ids to numbers.
        InvalidArgument: An id is not in [0, vocab_size).
    """
    if not isinstance(value, Mapping):
        raise TypeError(
            f"{where}: `{name}` must map token ids to numbers, but is of type "
            f"{type(value).__name__}."
        )
    return {
        as_token_id(where, name, None, token, vocab_size): as_number(where, name, number)
        for token, number in value.items()
    }


def _kind(value: Any) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"
