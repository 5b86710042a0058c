"""Writes values as Python and JSON do, with the origin of each character.

The text always equals that of Python's own function; origins that do not match it are discarded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from json.encoder import encode_basestring, encode_basestring_ascii
from pprint import pformat
from string import Formatter
from typing import Any

from sinkstream.text.templates.traced_text import (
    DERIVED,
    UNKNOWN,
    TracedText,
    mapped,
    origin_of_all,
    origins_of,
    traced,
    traced_result,
)

# What can follow a "%": a key without parentheses, flags, width, precision, length and kind.
_FIELD = re.compile(r"%(?:\(([^()]*)\))?([-+ #0]*[0-9]*(?:\.[0-9]*)?)[hlL]?(.)", re.DOTALL)


def written(value: Any) -> Any:
    """Return `str(value)` with its origins; values of other types than JSON's are unchanged."""
    if value is None or isinstance(value, int | float):
        return traced(str(value), DERIVED)
    if isinstance(value, dict | list | tuple):
        return _with_text(str(value), _representation(value))
    return value


def _with_text(text: str, parts: Iterator[str]) -> TracedText:
    """Return text with the origins of its parts, if they make up exactly this text."""
    try:
        found = TracedText().join(parts)
    except Exception:  # of parts that Python reads differently
        return TracedText(text)
    return TracedText(text, found.origins if str.__eq__(found, text) else "")


def _own(text: str) -> str:
    return traced(text, DERIVED)


def _representation(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for i, (key, part) in enumerate(value.items()):
            yield _own(", " if i else "{")
            yield from _representation(key)
            yield _own(": ")
            yield from _representation(part)
        yield _own("}" if value else "{}")
    elif isinstance(value, list | tuple):
        begin, end = "[]" if isinstance(value, list) else "()"
        for i, part in enumerate(value):
            yield _own(", " if i else begin)
            yield from _representation(part)
        comma = "," if isinstance(value, tuple) and len(value) == 1 else ""
        yield _own(comma + end if value else begin + end)
    elif isinstance(value, TracedText):
        shown = str.__repr__(value)
        quote = shown[0]
        yield _own(quote)
        yield mapped(value, lambda text: _inside(text, quote))
        yield _own(quote)
    else:
        yield traced(repr(value), origin_of_all([value]))


def _inside(text: str, quote: str) -> str:
    """Return what `repr` writes between these quotation marks."""
    shown = repr(text + '"')[1:-2]  # both kinds of marks in a text: the single ones are escaped
    return shown if quote == "'" else shown.replace("\\'", "'")


def written_for_people(value: Any) -> TracedText:
    """Return `pprint.pformat` of a value."""
    return _with_text(pformat(value), _representation(value))


def written_as_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> TracedText:
    """Return `json.dumps` of a value."""
    text = json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
    if separators is None:
        separators = (", " if indent is None else ",", ": ")
    writer = _JsonWriter(ensure_ascii, indent, separators, sort_keys)
    return _with_text(text, writer.parts(value, 0))


class _JsonWriter:
    def __init__(
        self,
        ensure_ascii: bool,
        indent: int | str | None,
        separators: tuple[str, str],
        sort_keys: bool,
    ) -> None:
        self._encode = encode_basestring_ascii if ensure_ascii else encode_basestring
        self._indent = " " * indent if isinstance(indent, int) else indent
        self._comma, self._colon = separators
        self._sort_keys = sort_keys

    def parts(self, value: Any, depth: int) -> Iterator[str]:
        if isinstance(value, str):
            yield _own('"')
            yield mapped(value, lambda text: self._encode(text)[1:-1])
            yield _own('"')
        elif isinstance(value, dict):
            pairs = sorted(value.items()) if self._sort_keys else value.items()
            yield _own("{")
            for i, (key, part) in enumerate(pairs):
                yield self._separator(i, depth + 1)
                yield from self.parts(key if isinstance(key, str) else _own(json.dumps(key)), 0)
                yield _own(self._colon)
                yield from self.parts(part, depth + 1)
            yield self._end(value, depth) + _own("}")
        elif isinstance(value, list | tuple):
            yield _own("[")
            for i, part in enumerate(value):
                yield self._separator(i, depth + 1)
                yield from self.parts(part, depth + 1)
            yield self._end(value, depth) + _own("]")
        else:
            yield _own(json.dumps(value))

    def _separator(self, index: int, depth: int) -> str:
        return _own((self._comma if index else "") + self._line(depth))

    def _end(self, value: Any, depth: int) -> str:
        return _own(self._line(depth) if value else "")

    def _line(self, depth: int) -> str:
        return "" if self._indent is None else "\n" + self._indent * depth


def percent_formatted(template: TracedText, arguments: Any) -> TracedText:
    """Return `template % arguments`."""
    return _with_text(str.__mod__(template, arguments), _percent_parts(template, arguments))


def _percent_parts(template: TracedText, arguments: Any) -> Iterator[str]:
    values = iter(arguments if isinstance(arguments, tuple) else (arguments,))
    at = 0
    for field in _FIELD.finditer(template):
        yield template[at : field.start()]
        at = field.end()
        key, flags, kind = field.groups()
        if kind == "%":
            yield template[at - 1 : at]
            continue
        value = next(values) if key is None else arguments[key]
        if kind == "s" and not flags:
            yield _as_text(value)
        else:
            yield traced(f"%{flags}{kind}" % (value,), origin_of_all([value]))
    yield template[at:]


def brace_formatted(
    formatter: Formatter,
    template: TracedText,
    arguments: Sequence[Any],
    named: Mapping[str, Any],
) -> TracedText:
    """Return `template.format(*arguments, **named)` as a formatter writes it."""
    text = formatter.vformat(str.__str__(template), arguments, named)
    return _with_text(text, _brace_parts(formatter, template, arguments, named))


def _brace_parts(
    formatter: Formatter,
    template: TracedText,
    arguments: Sequence[Any],
    named: Mapping[str, Any],
) -> Iterator[str]:
    own = partial(traced, origin=origin_of_all([template]))
    count = 0
    for literal, field, layout, conversion in formatter.parse(str.__str__(template)):
        yield own(literal)
        if field is None:
            continue
        if field == "":
            field, count = str(count), count + 1
        source, _ = formatter.get_field(field, arguments, named)
        value = traced_result(formatter.convert_field(source, conversion), [source])
        if isinstance(value, str) and not layout:
            yield value
        else:
            shown = formatter.format_field(value, layout or "")
            yield traced(shown, origin_of_all([value]))


def _as_text(value: Any) -> str:
    shown = written(value)
    return shown if isinstance(shown, str) else traced(str(shown), UNKNOWN)


def joined(separator: str, parts: Sequence[Any]) -> TracedText:
    """Return the parts, written and joined."""
    return TracedText(separator, origins_of(separator)).join(map(_as_text, parts))
