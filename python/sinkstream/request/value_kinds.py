"""The kinds of values that an option of a request can have: a check for each, and its range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from sinkstream.request.checks import (
    as_bias,
    as_bool,
    as_ids,
    as_int,
    as_number,
    as_strings,
    as_text,
)
from sinkstream.request.json_schema import as_schema_text

# Upper ends above this are not shown: they only protect arithmetic.
_SHOWN_HIGH = 1 << 16


class Kind(Protocol):
    """What an option accepts."""

    @property
    def rule(self) -> str:
        """Return the range as a sentence for the documentation, or nothing."""
        ...

    def check(self, name: str, value: Any, vocab_size: int) -> Any:
        """Return what the native side reads.

        Raises:
            TypeError: The value has the wrong type.
            InvalidArgument: The value is out of range.
        """
        ...


@dataclass(frozen=True, slots=True)
class Number:
    """Numbers from `low` to `high`, inclusive unless `is_open` excludes `low`."""

    low: float
    high: float
    is_open: bool = False

    def __contains__(self, value: float) -> bool:
        """Return whether `value` is in the range; NaN never is."""
        return self.low <= value <= self.high and not (self.is_open and value == self.low)

    def __str__(self) -> str:
        return f"{'(' if self.is_open else '['}{self.low:g}, {self.high:g}]"

    @property
    def rule(self) -> str:
        """Return the range."""
        return f"In {self}."

    def check(self, name: str, value: Any, vocab_size: int) -> float:
        """Return any float: the native `validate` checks the range, and rejects NaN."""
        return as_number("stream", name, value)


@dataclass(frozen=True, slots=True)
class Integer:
    """Integers from `low` to `high`, inclusive.

    Checked in Python as well: the native types cannot hold every int.
    """

    low: int
    high: int

    def __contains__(self, value: float) -> bool:
        """Return whether `value` is in the range."""
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"[{self.low}, {self.high}]"

    @property
    def rule(self) -> str:
        """Return the range, or only its lower end if the upper one is very large."""
        return f"In {self}." if self.high <= _SHOWN_HIGH else f"At least {self.low}."

    def check(self, name: str, value: Any, vocab_size: int) -> int:
        """Return an int in the range."""
        return as_int("stream", name, value, self.low, self.high)


@dataclass(frozen=True, slots=True)
class Flag:
    """True or False."""

    rule = ""

    def check(self, name: str, value: Any, vocab_size: int) -> bool:
        """Return a bool."""
        return as_bool("stream", name, value)


@dataclass(frozen=True, slots=True)
class Strings:
    """One string, or a sequence of strings."""

    rule = ""

    def check(self, name: str, value: Any, vocab_size: int) -> list[str]:
        """Return a list of Unicode strings."""
        return as_strings("stream", name, value)


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Ids of the vocabulary."""

    rule = ""

    def check(self, name: str, value: Any, vocab_size: int) -> list[int]:
        """Return a list of ids in [0, vocab_size)."""
        return as_ids("stream", name, value, vocab_size)


@dataclass(frozen=True, slots=True)
class Predicted:
    """Ids of the vocabulary; a caller may give their text, which is encoded before."""

    rule = "At most 131,072 tokens."

    def check(self, name: str, value: Any, vocab_size: int) -> list[int]:
        """Return a list of ids in [0, vocab_size); empty for None."""
        return [] if value is None else as_ids("stream", name, value, vocab_size)


@dataclass(frozen=True, slots=True)
class TokenBias:
    """Numbers for some ids of the vocabulary."""

    rule = ""

    def check(self, name: str, value: Any, vocab_size: int) -> dict[int, float]:
        """Return numbers by ids in [0, vocab_size)."""
        return as_bias("stream", name, value, vocab_size)


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A JSON schema: a mapping, its text, or a class that describes itself."""

    rule = ""

    def check(self, name: str, value: Any, vocab_size: int) -> str:
        """Return its text; llguidance checks its meaning."""
        return as_schema_text("stream", name, value)


@dataclass(frozen=True, slots=True)
class GrammarText:
    """The text of a regular expression or of a grammar."""

    rule = ""

    def check(self, name: str, value: Any, vocab_size: int) -> str:
        """Return a string; llguidance checks what it says."""
        return as_text("stream", name, value)
