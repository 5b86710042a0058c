"""The filters of chat templates: Jinja's, with bounds and with the origins of their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

from jinja2 import Environment, pass_environment
from jinja2.exceptions import TemplateError
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.filters import do_indent, do_title, make_attrgetter
from markupsafe import Markup

from sinkstream.text.templates.limits import (
    check_amplifiers,
    check_numbers,
    checked,
    current_limits,
    size_of,
)
from sinkstream.text.templates.traced_text import (
    DERIVED,
    TracedMarkup,
    TracedText,
    escaped,
    mapped,
    origins_of,
    traced_result,
)
from sinkstream.text.templates.writing import (
    joined,
    percent_formatted,
    written,
    written_as_json,
    written_for_people,
)

_MAX_INDENT = 16  # characters of each level, and of each separator

_UNCHANGED = frozenset({
    "abs", "attr", "batch", "capitalize", "center", "count", "d", "default", "dictsort",
    "filesizeformat", "first", "float", "groupby", "int", "items", "last", "length",
    "list", "lower", "map", "max", "min", "random", "reject", "rejectattr", "replace",
    "reverse", "round", "select", "selectattr", "slice", "sort", "striptags", "trim",
    "truncate", "unique", "upper", "urlencode", "urlize", "wordcount", "wordwrap", "xmlattr",
})  # fmt: skip


def _tojson(value: Any, *arguments: Any, **named: Any) -> str:
    """Write JSON as transformers does; Jinja's own filter escapes HTML."""
    given = dict(zip(("ensure_ascii", "indent", "separators"), arguments, strict=False)) | named
    indent = given.get("indent") or 0
    if (indent if isinstance(indent, int) else len(indent)) > _MAX_INDENT:
        raise TemplateError("its JSON indentation is too wide")
    if any(len(separator) > _MAX_INDENT for separator in given.get("separators") or ()):
        raise TemplateError("its JSON separators are too long")
    return written_as_json(value, *arguments, **named)


@pass_environment
def _join(
    environment: Environment,
    value: Iterable[Any],
    d: str = "",
    attribute: str | int | None = None,
) -> str:
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    parts = list(value)
    separator = str(d)
    current_limits.get().admit(size_of(parts) + len(parts) * len(separator))
    return joined(separator, parts)


def _string(value: Any) -> str:
    return value if isinstance(value, str) else str(written(value))


@pass_environment
def _sum(
    environment: Environment,
    iterable: Iterable[Any],
    attribute: str | int | None = None,
    start: Any = 0,
) -> Any:
    """Add numbers, or concatenate lists."""
    if isinstance(start, str):
        raise TypeError("sum() can't sum strings")
    if attribute is not None:
        iterable = map(make_attrgetter(environment, attribute), iterable)
    limits = current_limits.get()
    total = start
    for part in iterable:
        limits.tick()
        if isinstance(total, list | tuple):
            limits.admit(size_of(total) + size_of(part))
            limits.spend(8 * len(total))
        total = total + part
    return total


def _safe(value: Any) -> Markup:
    if isinstance(value, Markup):
        return value
    shown = value.__html__() if hasattr(value, "__html__") else str(written(value))
    return TracedMarkup(str.__str__(shown), origins_of(shown))


def _escape(value: Any) -> Markup:
    return _safe(value) if hasattr(value, "__html__") else _force_escape(value)


def _force_escape(value: Any) -> Markup:
    return escaped(str(written(value.__html__() if hasattr(value, "__html__") else value)))


def _format(value: Any, *arguments: Any, **named: Any) -> str:
    if arguments and named:
        raise TemplateError("it formats with both positional and named arguments")
    shown = _string(value)
    if isinstance(shown, Markup):
        return shown % (named or arguments)
    return percent_formatted(TracedText(shown, origins_of(shown)), named or arguments)


def _title(value: Any) -> str:
    return mapped(_string(value), do_title)


def _indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """Indent all lines, or all but the first and those that are empty."""
    text = do_indent(s, width, first, blank)
    if isinstance(s, Markup):
        return text
    newline = TracedText("\n", DERIVED)
    indentation = TracedText(" ", DERIVED) * width if isinstance(width, int) else width
    lines = (TracedText(s, origins_of(s)) + newline).splitlines()
    indented = [indentation + line if line or blank else line for line in lines[1:]]
    found = newline.join([lines[0], *indented])
    return TracedText(text, (indentation + found if first else found).origins)


_OWN = {
    "e": _escape,
    "escape": _escape,
    "forceescape": _force_escape,
    "format": _format,
    "indent": _indent,
    "join": _join,
    "pprint": written_for_people,
    "safe": _safe,
    "string": _string,
    "sum": _sum,
    "title": _title,
    "tojson": _tojson,
}


def _in_order(name: str) -> int:
    """Return the position of an argument of `replace`, which is checked by position."""
    return ("old", "new").index(name) if name in ("old", "new") else 2


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a filter: check the time, its arguments and its result."""

    @wraps(function)  # keeps the markers for what Jinja passes as the first argument
    def bounded(*arguments: Any, **named: Any) -> Any:
        limits = current_limits.get()
        limits.tick()
        given = arguments[1:] if hasattr(function, "jinja_pass_arg") else arguments
        check_numbers([*given[1:], *named.values()])
        inputs = [*given, *(named[key] for key in sorted(named, key=_in_order))]
        check_amplifiers(name, inputs)
        result = function(*arguments, **named)
        if not isinstance(result, Iterator):
            return checked(traced_result(result, inputs))
        # Consumed here to check its size. Returned as an iterator again, which is always truthy.
        taken: list[Any] = []
        size = 0
        for item in result:
            limits.tick()
            size += size_of(item)
            limits.admit(size)
            limits.spend(8)  # its pointer in the list; the item itself is counted already
            taken.append(item)
        return (item for item in taken)

    return bounded


FILTERS = {
    name: _bounded(name, function)
    for name, function in ({name: JINJA_FILTERS[name] for name in _UNCHANGED} | _OWN).items()
}
