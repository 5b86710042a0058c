"""Turns any JSON of a benchmark into Markdown tables: every figure of the file gets a cell.

Long lists of numbers become their count, median and range. Knows no benchmark by name.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from side_by_side_table import Row, markdown

_SHOWN = 4  # numbers of a list that are shown one by one
_SPREAD = {"median", "least", "most"}
_UNITS = {"kib": "KiB", "mib": "MiB", "us": "µs", "gil": "GIL"}


def number(value: float) -> str:
    """Return a number with at most six digits and commas between thousands."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 100_000 else f"{value:,.6g}"


def cell(value: Any) -> str:
    """Return a value that fits in one cell."""
    if value is None:
        return ""
    if isinstance(value, dict) and set(value) == _SPREAD:
        return f"{number(value['median'])} ({number(value['least'])} – {number(value['most'])})"
    if isinstance(value, dict):
        return "; ".join(f"{words(key)} {cell(one)}" for key, one in value.items())
    if isinstance(value, list) and is_numbers(value) and len(value) > _SHOWN:
        least, most = number(min(value)), number(max(value))
        return f"{len(value)} values, median {number(statistics.median(value))} ({least} – {most})"
    if isinstance(value, list):
        return "; ".join(map(cell, value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value).replace("|", "\\|")
    return number(value)


def words(key: str) -> str:
    """Return a key as words, with its unit as it is written."""
    if " " in key or "." in key:  # words already, or the name of a file
        return key
    return " ".join(_UNITS.get(word, word) for word in key.split("_"))


def is_numbers(values: list[Any]) -> bool:
    """Return whether a list has only numbers."""
    return all(isinstance(one, int | float) for one in values)


def is_flat(value: Any) -> bool:
    """Return whether a value belongs in one cell."""
    if isinstance(value, dict):
        return set(value) == _SPREAD
    return not isinstance(value, list) or not value or not isinstance(value[0], dict)


def is_table(value: Any) -> bool:
    """Return whether a value is several records: dicts with a key in common."""
    if isinstance(value, dict) and len(value) < 2:
        return False
    records = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(records, list) or not all(isinstance(one, dict) and one for one in records):
        return False
    flat = all(is_flat(field) for one in records for field in one.values())
    return flat and bool(set.intersection(*(set(one) for one in records)))


def records_table(value: dict[str, dict[str, Any]] | list[dict[str, Any]]) -> str:
    """Return a table with one row a record."""
    records = list(value.values()) if isinstance(value, dict) else value
    fields = list(dict.fromkeys(field for one in records for field in one))
    body: list[Row] = [tuple(cell(one.get(field)) for field in fields) for one in records]
    head = tuple(words(field) for field in fields)
    if isinstance(value, dict):
        head = ("", *head)
        body = [(words(name), *row) for name, row in zip(value, body, strict=True)]
    return markdown(head, body)


def tables(figures: dict[str, Any], name: str = "") -> Iterator[str]:
    """Yield the tables of a JSON object: first its plain values, then what is nested in it."""
    plain = {key: value for key, value in figures.items() if is_flat(value)}
    if plain:
        body = [(words(key), cell(value)) for key, value in plain.items()]
        yield markdown((name or "figure", ""), body)
    nested = {key: value for key, value in figures.items() if key not in plain}
    for alike in groups(nested):
        if len(alike) > 1:
            yield (f"{name}:\n\n" if name else "") + records_table(alike)
            continue
        ((key, value),) = alike.items()
        title = f"{name}, {words(key)}" if name else words(key)
        if is_table(value):
            yield f"{title}:\n\n{records_table(value)}"
        elif isinstance(value, dict):
            yield from tables(value, title)
        else:
            yield markdown((title, ""), [(str(i), cell(one)) for i, one in enumerate(value)])


def groups(nested: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the values in groups of flat records that have the same fields."""
    found: dict[Any, dict[str, Any]] = {}
    for key, value in nested.items():
        is_record = isinstance(value, dict) and all(is_flat(field) for field in value.values())
        found.setdefault(tuple(value) if is_record else (None, key), {})[key] = value
    return list(found.values())
