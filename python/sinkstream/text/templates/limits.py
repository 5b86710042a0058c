"""What rendering a template may cost, and the checks that hold it to that.

Python can interrupt a template only between operations, so a clock is not enough: one operation
(`"a" * 10**9`) may do all the harm. The size of what an operation makes is checked before.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from string import Formatter
from sys import getsizeof
from typing import Any

from jinja2.exceptions import TemplateError

MAX_BITS = 4096  # of a whole number that a template computes
_MAX_WHOLE = 100_000  # of numbers given to functions: widths, counts, places
MAX_VALUES = 64  # bytes in all for each character admitted; templates in use make less than ten
_THOUSANDS = re.compile(r"\d{4}")
_PARENTHESIS = re.compile(r"[()]")
# Flags, width, precision and length of a `%` field. Every part may be empty and none can give back
# what it took, so a match takes a time in proportion to its length.
_PERCENT_FIELD = re.compile(r"[-+ #0]*(\*|[0-9]*)(?:\.(\*|[0-9]*))?[hlL]?")
_TOO_WIDE = "it formats with a width that is too large"


class Limits:
    """What one rendering may cost."""

    def __init__(self, seconds: float, max_size: int) -> None:
        """Start the clock.

        Args:
            seconds: How long the template may run.
            max_size: Characters and elements that the output, and any value on the way to it, may
                have. All values together may take a fixed multiple of it, in bytes.
        """
        self._deadline = time.monotonic() + seconds
        self._max_size = max_size
        self._left = MAX_VALUES * max_size

    def tick(self) -> None:
        """Stop the template when its time is over."""
        if time.monotonic() > self._deadline:
            raise TemplateError("it takes too long")

    def admit(self, size: int) -> None:
        """Stop the template when a value is, or is about to become, too large."""
        if size > self._max_size:
            raise TemplateError("it makes something too large")

    def spend(self, size: int) -> None:
        """Count the bytes made, parts that existed before aside, and stop when it is too much."""
        self._left -= size
        if self._left < 0:
            raise TemplateError("it makes too much")


current_limits: ContextVar[Limits] = ContextVar("limits")


def size_of(value: Any, known: dict[int, int] | None = None) -> int:
    """Return the characters and elements of a value as if it were written out.

    Lists that share their parts are small in memory and huge when they are written: each part is
    looked at once, and counted as often as it appears.
    """
    if isinstance(value, str):
        return len(value)
    parts: Iterable[Any]
    if isinstance(value, list | tuple):
        parts = value
    elif isinstance(value, Mapping):
        parts = (part for pair in value.items() for part in pair)
    else:
        return 1
    known = {} if known is None else known
    if id(value) not in known:
        known[id(value)] = 1 + sum(size_of(part, known) for part in parts)
    return known[id(value)]


def checked(value: Any) -> Any:
    """Return a value that was just made, if it is not too large and there is time left."""
    limits = current_limits.get()
    limits.tick()
    limits.admit(size_of(value))
    if isinstance(value, str | list | tuple | Mapping):
        limits.spend(getsizeof(value))
    return value


def check_numbers(arguments: Iterable[Any]) -> None:
    """Refuse numbers that would be a width or a count beyond all need."""
    for value in arguments:
        if isinstance(value, int) and abs(value) > _MAX_WHOLE:
            raise TemplateError("it gives a function a number that is too large")


def check_percent(template: str, arguments: Any) -> None:
    """Refuse `template % arguments` where fields may be very wide, or repeat large arguments."""
    _check_fields(template, template.count("%"), arguments)
    if _has_wide_percent_field(template):
        raise TemplateError(_TOO_WIDE)


def check_braces(template: str, arguments: Any) -> None:
    """Refuse `template.format(arguments)` in the same cases."""
    _check_fields(template, template.count("{"), arguments)
    if _has_wide_brace_field(template):
        raise TemplateError(_TOO_WIDE)


def check_date_layout(layout: str) -> None:
    """Refuse a layout of `strftime` whose fields may be very wide."""
    _check_fields(layout, layout.count("%"), ())
    if _THOUSANDS.search(layout):
        raise TemplateError(_TOO_WIDE)


def _check_fields(template: str, fields: int, arguments: Any) -> None:
    # A field has at most 999 characters of its own, or the arguments' own.
    current_limits.get().admit(len(template) + fields * (1000 + size_of(arguments)))


# Note: [Wide fields]
# A field is wide when its width or precision is a thousand or more, or comes from an argument. The
# scans below find fields where Python finds them, to the letter: one that believes that a field
# begins elsewhere can be made to overlook the next. They take linear time.


def _has_wide_percent_field(template: str) -> bool:
    """Return whether `template % …` has a wide field, such as "%1000d" or "%(name)*d"."""
    place = 0
    while (place := template.find("%", place) + 1) > 0:
        if template.startswith("(", place):
            place = _end_of_key(template, place)
        field = _PERCENT_FIELD.match(template, place)
        assert field is not None  # every part of it may be empty
        if any(number == "*" or len(number or "") > 3 for number in field.groups()):
            return True
        place = field.end() + 1  # behind the conversion, which may be another "%"
    return False


def _end_of_key(template: str, begin: int) -> int:
    """Return the place behind a key in parentheses, which may hold others."""
    depth = 0
    for parenthesis in _PARENTHESIS.finditer(template, begin):
        depth += 1 if parenthesis[0] == "(" else -1
        if depth == 0:
            return parenthesis.end()
    return len(template)  # an error for Python, which gets no further


def _has_wide_brace_field(template: str) -> bool:
    """Return whether `template.format(…)` has a wide field, such as "{:1000}" or "{:{width}}"."""
    try:
        for _, _, spec, _ in Formatter().parse(template):
            if spec and ("{" in spec or _THOUSANDS.search(spec)):
                return True
    except ValueError:
        pass  # an error for `format` too, which gets no further
    return False


def check_amplifiers(name: str, arguments: Sequence[Any]) -> None:
    """Refuse the filters and methods that make much out of little, before they do."""
    limits = current_limits.get()
    first, *others = arguments
    if name == "replace" and len(others) >= 2:
        text, old, new = str(first), str(others[0]), str(others[1])
        limits.admit(len(text) + text.count(old) * len(new))
    elif name == "join" and isinstance(first, str) and others:
        parts = others[0]
        if not isinstance(parts, str | list | tuple | Mapping):
            raise TemplateError("it joins something that is not a list")
        limits.admit(size_of(parts) + len(parts) * len(first))
    elif name == "indent":
        widths = [len(other) if isinstance(other, str) else int(other) for other in others]
        limits.admit(str(first).count("\n") * max(widths, default=4))
    elif name == "format":
        check_percent(str(first), tuple(others))
    elif name == "sum" and any(not isinstance(other, int | float | str) for other in others):
        raise TemplateError("it sums up something other than numbers")
