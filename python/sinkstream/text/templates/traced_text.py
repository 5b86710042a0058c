"""Strings that know where each character comes from: the template itself, or a message.

Only what comes from the template can become a control token. A template sees ordinary strings, and
every operation gives the same text as for ordinary strings; the origins are computed alongside.
Plain strings have an unknown origin, so an operation that is not listed here loses the origins,
never the text, and never turns a message into a control token.
"""

# ruff: noqa: D102 (the methods are those of `str`)

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, SupportsIndex

from jinja2.runtime import Undefined
from markupsafe import Markup, escape

# An origin is one character for each character of a text.
UNKNOWN = "\x00"
MESSAGE = "\x01"
DERIVED = "\x02"  # computed from the template's own strings and from numbers
_FIRST_STRING = 3
_known = re.compile(f"[^{UNKNOWN}]")
_MAX_RUNS = 64


def origin_of_string(number: int) -> str:
    """Return the origin of a string in the template, given the string's number."""
    return chr(_FIRST_STRING + number)


class TracedText(str):
    """A string and the origins of its characters."""

    __slots__ = ("origins",)
    origins: str

    def __new__(cls, text: str = "", origins: str = "") -> TracedText:
        """Combine both. Origins with a different length are discarded."""
        traced = super().__new__(cls, text)
        traced.origins = origins if len(origins) == len(text) else UNKNOWN * len(text)
        return traced

    def __str__(self) -> str:
        return self

    def __getitem__(self, key: SupportsIndex | slice) -> TracedText:
        return TracedText(str.__getitem__(self, key), self.origins[key])

    def __iter__(self) -> Iterator[TracedText]:
        return map(TracedText, str.__iter__(self), self.origins)

    def __add__(self, other: str) -> TracedText:
        if isinstance(other, Markup) or not isinstance(other, str):
            return NotImplemented  # markup escapes what it is added to
        return TracedText(str.__add__(self, other), self.origins + origins_of(other))

    def __radd__(self, other: str) -> TracedText:
        return TracedText(str.__add__(other, self), origins_of(other) + self.origins)

    def __mul__(self, count: SupportsIndex) -> TracedText:
        return TracedText(str.__mul__(self, count), self.origins * count)

    __rmul__ = __mul__

    def capitalize(self) -> TracedText:
        return mapped(self, str.capitalize)

    def casefold(self) -> TracedText:
        return mapped(self, str.casefold)

    def lower(self) -> TracedText:
        return mapped(self, str.lower)

    def swapcase(self) -> TracedText:
        return mapped(self, str.swapcase)

    def title(self) -> TracedText:
        return mapped(self, str.title)

    def upper(self) -> TracedText:
        return mapped(self, str.upper)

    def strip(self, chars: str | None = None) -> TracedText:
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None) -> TracedText:
        return self[len(self) - len(str.lstrip(self, chars)) :]

    def rstrip(self, chars: str | None = None) -> TracedText:
        return self[: len(str.rstrip(self, chars))]

    def removeprefix(self, prefix: str, /) -> TracedText:
        return self[len(self) - len(str.removeprefix(self, prefix)) :]

    def removesuffix(self, suffix: str, /) -> TracedText:
        return self[: len(str.removesuffix(self, suffix))]

    def split(  # type: ignore[override]  # a list of a narrower type
        self, sep: str | None = None, maxsplit: SupportsIndex = -1
    ) -> list[TracedText]:
        return self._found(str.split(self, sep, maxsplit), sep)

    def rsplit(  # type: ignore[override]
        self, sep: str | None = None, maxsplit: SupportsIndex = -1
    ) -> list[TracedText]:
        return self._found(str.rsplit(self, sep, maxsplit), sep)

    def _found(self, parts: list[str], separator: str | None) -> list[TracedText]:
        """Find the parts of a split. Only white space is skipped if there is no separator."""
        found, at = [], 0
        for part in parts:
            begin = self.index(part, at) if separator is None else at
            found.append(self[begin : begin + len(part)])
            at = begin + len(part) + len(separator or "")
        return found

    def splitlines(self, keepends: bool = False) -> list[TracedText]:  # type: ignore[override]
        lines = self._found(str.splitlines(self, True), "")
        kept = str.splitlines(self, keepends)
        return [line[: len(part)] for line, part in zip(lines, kept, strict=True)]

    def partition(self, sep: str, /) -> tuple[TracedText, TracedText, TracedText]:
        return self._thirds(str.partition(self, sep))

    def rpartition(self, sep: str, /) -> tuple[TracedText, TracedText, TracedText]:
        return self._thirds(str.rpartition(self, sep))

    def _thirds(self, parts: tuple[str, str, str]) -> tuple[TracedText, TracedText, TracedText]:
        first, second, third = self._found(list(parts), "")
        return first, second, third

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> TracedText:
        text = str.replace(self, old, new, count)
        if old:
            parts = [part.origins for part in self.split(old, count)]
        else:  # between all characters, and at both ends
            parts = ["", *self.origins, ""]
            last = len(parts) - 1 if count.__index__() < 0 else count.__index__()
            parts[last:] = ["".join(parts[last:])]
        return TracedText(text, origins_of(new).join(parts))

    def ljust(self, width: SupportsIndex, *fill: str) -> TracedText:
        return self._padded(str.ljust(self, width, *fill), 0, *fill)

    def rjust(self, width: SupportsIndex, *fill: str) -> TracedText:
        text = str.rjust(self, width, *fill)
        return self._padded(text, len(text) - len(self), *fill)

    def center(self, width: SupportsIndex, *fill: str) -> TracedText:
        text = str.center(self, width, *fill)
        added = len(text) - len(self)
        return self._padded(text, added // 2 + (added & width.__index__() & 1), *fill)

    def _padded(self, text: str, before: int, fill: str | None = None) -> TracedText:
        added = DERIVED if fill is None else origins_of(fill)
        after = len(text) - len(self) - before
        return TracedText(text, added * before + self.origins + added * after)

    def join(self, parts: Iterable[str], /) -> TracedText:
        parts = list(parts)
        text = str.join(self, parts)
        return TracedText(text, self.origins.join(map(origins_of, parts)))


class TracedMarkup(Markup):
    """Markup and the origins of its characters. Most methods return markup of unknown origin."""

    __slots__ = ("origins",)
    origins: str

    def __new__(cls, text: Any = "", origins: str = "") -> TracedMarkup:
        """Combine both. Origins with a different length are discarded."""
        traced = super().__new__(cls, text)
        traced.origins = origins if len(origins) == len(traced) else UNKNOWN * len(traced)
        return traced

    def __str__(self) -> str:
        return TracedText(str.__str__(self), self.origins)

    def __repr__(self) -> str:
        return f"Markup({str.__repr__(self)})"

    def __add__(self, other: Any) -> TracedMarkup:
        if not isinstance(other, str):
            return NotImplemented
        added = escaped(other)
        return TracedMarkup(str.__add__(self, added), self.origins + added.origins)

    def __radd__(self, other: Any) -> TracedMarkup:
        return escaped(other) + self if isinstance(other, str) else NotImplemented

    def __getitem__(self, key: SupportsIndex | slice) -> TracedMarkup:
        return TracedMarkup(str.__getitem__(self, key), self.origins[key])


def origins_of(text: str) -> str:
    """Return the origins of a string's characters."""
    if isinstance(text, TracedText | TracedMarkup):
        return text.origins
    return UNKNOWN * len(text)


def traced(text: str, origin: str) -> str:
    """Return a string or markup all of whose characters have the same origin."""
    kind = TracedMarkup if isinstance(text, Markup) else TracedText
    return kind(str.__str__(text), origin * len(text))


def mapped(text: str, change: Callable[[str], str]) -> TracedText:
    """Apply a function that replaces each character, depending at most on those before it."""
    plain, origins = str.__str__(text), origins_of(text)
    changed = str.__str__(change(plain))
    if len(changed) == len(plain):
        return TracedText(changed, origins)
    runs = [(origin, len(list(run))) for origin, run in groupby(origins)]
    if len(runs) > _MAX_RUNS:
        return TracedText(changed)
    parts, end, done = [], 0, 0
    for origin, length in runs:
        end += length
        reached = len(change(plain[:end])) if end < len(plain) else len(changed)
        parts.append(origin * (reached - done))
        done = reached
    return TracedText(changed, "".join(parts))


def escaped(text: str) -> TracedMarkup:
    """Escape a string and return it as markup."""
    if not isinstance(text, Markup):
        text = mapped(text, lambda part: str.__str__(escape(part)))
    return TracedMarkup(str.__str__(text), origins_of(text))


def traced_data(value: Any, origin: str) -> Any:
    """Return a copy of JSON data in which all strings have the same origin."""
    if isinstance(value, str):
        return traced(value, origin)
    if isinstance(value, Mapping):
        return {traced_data(key, origin): traced_data(part, origin) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [traced_data(part, origin) for part in value]
    return value


def traced_result(result: Any, inputs: Iterable[Any]) -> Any:
    """Return the result of a function that depends on its inputs alone, with its origin."""
    if not isinstance(result, str) or _known.search(origins_of(result)):
        return result
    return traced(result, origin_of_all(inputs))


def origin_of_all(values: Iterable[Any]) -> str:
    """Return the common origin of all strings in some values; UNKNOWN if there are several."""
    origins: set[str] = set()
    seen: set[int] = set()
    pending = list(values)
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            origins |= _summary(origins_of(value))
        elif isinstance(value, list | tuple | Mapping):
            if id(value) not in seen:
                seen.add(id(value))
                pending += value.keys() if isinstance(value, Mapping) else value
                pending += value.values() if isinstance(value, Mapping) else ()
        elif value is not None and not isinstance(value, int | float | Undefined):
            return UNKNOWN
    if len(origins) == 1:
        return origins.pop()
    return UNKNOWN if origins & {UNKNOWN, MESSAGE} else DERIVED


def _summary(origins: str) -> set[str]:
    """Return enough of the origins of a text for `origin_of_all`, without a look at each.

    Texts have millions of characters: a set of all would hold the GIL for half a second.
    """
    if not origins or origins.count(origins[0]) == len(origins):
        return set(origins[:1])
    return {DERIVED, origins[0], *(one for one in (UNKNOWN, MESSAGE) if one in origins)}
