"""Limits on the cost of rendering a template, and the checks that enforce them.

Python can interrupt a template only between operations, so a timeout is not enough: one operation
(`"a" * 10**9`) can do all the harm. The size of a result is therefore checked in advance.
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

MAX_BITS = 4096  # of an integer that a template computes
_MAX_ARGUMENT = 100_000  # of integers passed to functions: widths, counts, indices
MAX_VALUES = 64  # bytes of all values, per admitted character; common templates need under ten
_LINK = 50  # characters that `urlize` adds to a link
_THOUSANDS = re.compile(r"\d{4}")
_PARENTHESIS = re.compile(r"[()]")
# Flags, width, precision and length of a `%` field. Every part may be empty, and none of them
# backtracks, so matching takes linear time.
_PERCENT_FIELD = re.compile(r"[-+ #0]*(\*|[0-9]*)(?:\.(\*|[0-9]*))?[hlL]?")
_TOO_WIDE = "it formats with a width that is too large"


class Limits:
    """The limits of one rendering."""

    def __init__(self, seconds: float, max_size: int) -> None:
        """Start the clock, in the thread that renders.

        Args:
            seconds: How long the template may run on a processor. Waiting for one does not count:
                what a template writes must not depend on what else the machine does.
            max_size: Maximum number of characters and elements of the output and of every
                intermediate value. All values together may take a fixed multiple of it, in bytes.
        """
        self._deadline = time.thread_time() + seconds
        self._check_at = time.monotonic() + seconds  # it cannot have run for as long before
        self._max_size = max_size
        self._left = MAX_VALUES * max_size

    def tick(self) -> None:
        """Stop the template when its time is up."""
        now = time.monotonic()  # ten times as fast as `thread_time`
        if now <= self._check_at:
            return
        left = self._deadline - time.thread_time()
        if left <= 0:
            raise TemplateError("it takes too long")
        self._check_at = now + left

    def admit(self, size: int) -> None:
        """Stop the template if a value is or would become too large."""
        if size > self._max_size:
            raise TemplateError("it creates a value that is too large")

    def spend(self, size: int) -> None:
        """Count newly allocated bytes, and stop the template when there are too many."""
        self._left -= size
        if self._left < 0:
            raise TemplateError("it creates too many values")


current_limits: ContextVar[Limits] = ContextVar("limits")


def size_of(value: Any, known: dict[int, int] | None = None) -> int:
    """Return the number of characters and elements of a value if it were written out.

    Lists that share parts are small in memory and huge when written: each part is visited once, and
    counted as often as it appears.
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
    """Return a new value if it is not too large and there is time left."""
    limits = current_limits.get()
    limits.tick()
    limits.admit(size_of(value))
    if isinstance(value, str | list | tuple | Mapping):
        limits.spend(getsizeof(value) + len(getattr(value, "origins", "")))
    return value


def check_numbers(arguments: Iterable[Any]) -> None:
    """Refuse integers that are too large for a width or a count."""
    for value in arguments:
        if isinstance(value, int) and abs(value) > _MAX_ARGUMENT:
            raise TemplateError("it calls a function with a number that is too large")


def check_percent(template: str, arguments: Any) -> None:
    """Refuse `template % arguments` if fields may be very wide, or repeat large arguments."""
    _check_fields(template, template.count("%"), arguments)
    if _has_wide_percent_field(template):
        raise TemplateError(_TOO_WIDE)


def check_braces(template: str, arguments: Any) -> None:
    """Refuse `template.format(arguments)` in the same cases."""
    _check_fields(template, template.count("{"), arguments)
    if _has_wide_brace_field(template):
        raise TemplateError(_TOO_WIDE)


def check_date_layout(layout: str) -> None:
    """Refuse a `strftime` format whose fields may be very wide."""
    _check_fields(layout, layout.count("%"), ())
    if _THOUSANDS.search(layout):
        raise TemplateError(_TOO_WIDE)


def _check_fields(template: str, fields: int, arguments: Any) -> None:
    # A field yields at most 999 characters of padding, or all of the arguments.
    current_limits.get().admit(len(template) + fields * (1000 + size_of(arguments)))


# Note: [Wide fields]
# A field is wide if its width or precision is 1,000 or more, or comes from an argument. The scans
# below find fields exactly where Python finds them: a scan that disagrees about where one field
# begins could be tricked into overlooking the next. They take linear time.


def _has_wide_percent_field(template: str) -> bool:
    """Return whether `template % …` has a wide field, such as "%1000d" or "%(name)*d"."""
    at = 0
    while (at := template.find("%", at) + 1) > 0:
        if template.startswith("(", at):
            at = _end_of_key(template, at)
        field = _PERCENT_FIELD.match(template, at)
        assert field is not None  # every part of it may be empty
        if any(number == "*" or len(number or "") > 3 for number in field.groups()):
            return True
        at = field.end() + 1  # past the conversion, which may be another "%"
    return False


def _end_of_key(template: str, begin: int) -> int:
    """Return the end of a key in parentheses, which may be nested."""
    depth = 0
    for parenthesis in _PARENTHESIS.finditer(template, begin):
        depth += 1 if parenthesis[0] == "(" else -1
        if depth == 0:
            return parenthesis.end()
    return len(template)  # an error in Python, which stops there too


def _has_wide_brace_field(template: str) -> bool:
    """Return whether `template.format(…)` has a wide field, such as "{:1000}" or "{:{width}}"."""
    try:
        for _, _, spec, _ in Formatter().parse(template):
            if spec and ("{" in spec or _THOUSANDS.search(spec)):
                return True
    except ValueError:
        pass  # an error in `format` too, which stops there
    return False


def check_amplifiers(name: str, arguments: Sequence[Any]) -> None:
    """Refuse filters and methods that would make large results out of small arguments."""
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
    elif name == "expandtabs":
        limits.admit(str(first).count("\t") * max((int(other) for other in others), default=8))
    elif name == "wordwrap":
        wraps = [len(other) for other in others if isinstance(other, str)]
        limits.admit(len(str(first)) * (1 + max(wraps, default=1)))
    elif name == "urlize":
        links = sum(map(str(first).count, ".:@"))
        limits.admit(3 * len(str(first)) + links * (_LINK + size_of(others)))
    elif name == "pprint" and size_of(first) > _MAX_ARGUMENT:
        raise TemplateError("it prints a value that is too large")
