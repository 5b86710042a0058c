"""Rewrites JSON schemas so that llguidance follows them exactly, or drops what it cannot enforce.

An exact rewriting allows no instance that the schema forbids. It forbids a few that the schema
allows: numbers next to bounds that llguidance cannot hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

# Where schemas have schemas.
_MAPS = ("$defs", "definitions", "patternProperties", "properties")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("additionalItems", "additionalProperties", "items")
_DEFINITIONS = ("$defs", "definitions")
# What llguidance 1.9 does not know.
_UNKNOWN = (
    "$dynamicRef", "$recursiveRef", "contains", "dependencies", "dependentRequired",
    "dependentSchemas", "else", "if", "maxContains", "minContains", "not", "propertyNames", "then",
    "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
)  # fmt: skip
# Values of these that allow everything, as generators write them.
_ALLOWS_ALL: dict[str, tuple[Any, ...]] = {
    "propertyNames": ({"type": "string"}, {}, True),
    "unevaluatedItems": ({}, True),
    "unevaluatedProperties": ({}, True),
    "uniqueItems": (False,),
}
_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_FORMATS = (
    "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid",
)  # fmt: skip
# What a schema says about one value, in the order in which it is dropped until llguidance takes it.
_LOCAL = (
    "pattern", "format", "multipleOf", "minLength", "maxLength", "minItems", "maxItems",
    "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "minProperties", "maxProperties",
    "patternProperties", "additionalProperties", "required", "const", "enum", "type",
)  # fmt: skip
_BOUNDS = ("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum")
_LARGEST = 2**63 - 1024
"""The largest number that both a double and an int64 hold: llguidance's bounds must be both."""
_MANY_DIGITS = 10**18
"""From here on, llguidance needs a bound on both sides."""
_BEYOND = 10**19
_SMALLEST = Decimal("1e-20")
_STEP = Decimal("1e-9")
_BLANK_KEYS = {"item_separator", "key_separator", "whitespace_flexible", "whitespace_pattern"}
_BLANKS = r"[ \t]{1,4}|\r?\n[ \t]{0,80}"
_MOST_TRIED = 256
"""Parts of a refused schema that are tried by themselves; each takes milliseconds."""

Fault = Callable[[Any], str]
"""Returns why llguidance refuses a schema; "" if it takes it."""


class Unenforceable(Exception):
    """A keyword that llguidance follows wrongly; the message says where and why."""


def is_lenient(schema: Any) -> bool:
    """Return whether a schema asks to drop what cannot be enforced: `"x-guidance"`, `lenient`."""
    guidance = schema.get("x-guidance") if isinstance(schema, Mapping) else None
    return isinstance(guidance, Mapping) and guidance.get("lenient") is True


def lenient(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema that asks to drop what cannot be enforced."""
    guidance = schema.get("x-guidance")
    given = guidance if isinstance(guidance, Mapping) else {}
    return {**schema, "x-guidance": {**given, "lenient": True}}


def with_bounded_blanks(schema: Any) -> Any:
    """Return a schema whose instances have a line break and an indent between two parts, or less.

    Without a bound, a small model may write white space to the end of its reply. A schema that says
    itself what white space there may be stays as it is.
    """
    guidance = schema.get("x-guidance", {}) if isinstance(schema, dict) else None
    if not isinstance(guidance, dict) or guidance.keys() & _BLANK_KEYS:
        return schema
    return {**schema, "x-guidance": {**guidance, "whitespace_pattern": _BLANKS}}


def exact(schema: Any) -> Any:
    """Return an equivalent schema that llguidance follows exactly.

    Raises:
        Unenforceable: There is none.
    """
    return _mapped(schema, "", _exact)


def enforceable(schema: Any, fault: Fault) -> tuple[Any, list[str]]:
    """Return the part of a lenient schema that llguidance follows, and the keywords dropped."""
    dropped: list[str] = []
    # Llguidance would drop some of it, too, but not say so.
    guidance = {key: value for key, value in schema["x-guidance"].items() if key != "lenient"}
    schema = {**schema, "x-guidance": guidance}

    def known(one: dict[str, Any], path: str) -> dict[str, Any]:
        return _known(one, schema, dropped)

    def followed(one: dict[str, Any], path: str) -> dict[str, Any]:
        try:
            return _exact(one, path)
        except Unenforceable:
            dropped.append("minProperties")
            return _exact({key: one[key] for key in one if key != "minProperties"}, path)

    kept = _mapped(_mapped(schema, "", known), "", followed)
    if not fault(kept):
        return kept, dropped
    if any("oneOf" in one for _, one in _nodes(kept, "")):
        dropped.append("oneOf")
        kept = {**kept, "x-guidance": {**guidance, "coerce_one_of": True}}
    if len(list(_nodes(kept, ""))) <= _MOST_TRIED and fault(kept):
        kept = _mapped(kept, "", lambda one, _: _taken(one, fault, dropped))
    if fault(kept):
        dropped.append("the whole schema")
        kept = {"type": "object"} if schema.get("type") == "object" else {}
    return kept, dropped


def faulty_path(schema: Any, fault: Fault) -> str:
    """Return the JSON pointer of the smallest part that llguidance refuses by itself."""
    nodes = list(_nodes(schema, ""))
    for path, one in reversed(nodes if len(nodes) <= _MOST_TRIED else []):
        shallow = {key: value for key, value in one.items() if key not in _DEFINITIONS}
        if "$ref" not in one and fault(_without_parts(shallow)):
            return str(path)
    return ""


# ---- walking -------------------------------------------------------------------------------------


def _mapped(schema: Any, path: str, change: Callable[[dict[str, Any], str], Any]) -> Any:
    """Return a schema all of whose schemas have been changed, the inner ones first."""
    if not isinstance(schema, dict):
        return schema
    changed = dict(schema)
    for key, at, part in _parts(schema):
        done = _mapped(part, f"{path}/{key}" if at is None else f"{path}/{key}/{at}", change)
        if at is None:
            changed[key] = done
        else:
            if changed[key] is schema[key]:
                changed[key] = schema[key].copy()
            changed[key][at] = done
    return change(changed, path)


def _nodes(schema: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield all schemas with their JSON pointers, the outer ones first."""
    if isinstance(schema, dict):
        yield path, schema
        for key, at, part in _parts(schema):
            yield from _nodes(part, f"{path}/{key}" if at is None else f"{path}/{key}/{at}")


def _parts(schema: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the schemas directly in a schema: the keyword, the key or index, the schema."""
    for key, value in schema.items():
        if key in _SINGLE and isinstance(value, dict):
            yield key, None, value
        elif key in _MAPS and isinstance(value, dict):
            yield from ((key, name, part) for name, part in value.items())
        elif key in (*_LISTS, "items") and isinstance(value, list):
            yield from ((key, i, part) for i, part in enumerate(value))


def _without_parts(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with `{}` for all schemas in it."""
    return {
        key: {name: {} for name in value}
        if key in _MAPS and isinstance(value, dict)
        else {}
        if key in _SINGLE and isinstance(value, dict)
        else value
        for key, value in schema.items()
        if key not in _LISTS
    }


# ---- dropping ------------------------------------------------------------------------------------


def _known(schema: dict[str, Any], root: Any, dropped: list[str]) -> dict[str, Any]:
    """Return a schema without keywords and values that llguidance does not know."""
    kept = {}
    closes = schema.get("unevaluatedProperties") is False
    if closes and not any(key in schema for key in ("$ref", "additionalProperties", *_LISTS)):
        schema = {key: schema[key] for key in schema if key != "unevaluatedProperties"}
        schema["additionalProperties"] = False
    for key, value in schema.items():
        if key in _UNKNOWN:
            if value not in _ALLOWS_ALL.get(key, ()):
                dropped.append(key)
        elif key == "format" and isinstance(value, str) and value not in _FORMATS:
            if schema.get("type", "string") == "string":  # those of numbers are notes
                dropped.append(key)
        elif (key == "$ref" and not _is_found(root, value)) or (
            key == "type" and isinstance(value, str) and value not in _TYPES
        ):
            dropped.append(key)
        else:
            kept[key] = value
    return kept


def _is_found(root: Any, reference: Any) -> bool:
    """Return whether a reference is a JSON pointer to a part of the schema."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return False
    for name in reference[1:].split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(root, list) and name.isdigit() and int(name) < len(root):
            root = root[int(name)]
        elif isinstance(root, dict) and name in root:
            root = root[name]
        else:
            return False
    return reference == "#" or reference.startswith("#/")


def _taken(schema: dict[str, Any], fault: Fault, dropped: list[str]) -> dict[str, Any]:
    """Return a schema without the keywords for which llguidance refuses it by itself."""
    kept = dict(schema)
    for key in _LOCAL:
        alone = {name: value for name, value in kept.items() if name in (*_LOCAL, "properties")}
        if not fault(_without_parts(alone)):
            break
        if key in kept:
            del kept[key]
            dropped.append(key)
    return kept


# ---- exact rewriting -----------------------------------------------------------------------------


def _exact(schema: dict[str, Any], path: str) -> dict[str, Any]:
    return _with_bounds(_with_count(schema, path))


def _with_count(schema: dict[str, Any], path: str) -> dict[str, Any]:
    """Leave out a `minProperties` that is certain; a key may come twice, and counts once."""
    least, required = schema.get("minProperties"), schema.get("required")
    if not isinstance(least, int) or isinstance(least, bool):
        return schema
    count = len(set(map(str, required))) if isinstance(required, list) else 0
    if least <= count:
        return {key: value for key, value in schema.items() if key != "minProperties"}
    if least > count + 1 or (count and least > 1):
        raise Unenforceable(
            f"{path or '/'}: `minProperties` must be at most 1, or the number of required "
            f"properties, but is {least}: a key that is written twice would count twice"
        )
    return schema


def _with_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    """Return numeric bounds that llguidance holds, moved inwards where they must be moved."""
    if not any(key in schema for key in _BOUNDS):
        return schema
    given = _current_bounds(schema)
    if any(isinstance(value, bool) or not _is_finite(value) for value in given.values()):
        return schema  # llguidance refuses them
    kept = {key: value for key, value in schema.items() if key not in _BOUNDS}
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    is_integer = "integer" in kinds and "number" not in kinds
    return kept | (_integer_bounds(given) if is_integer else _number_bounds(given))


def _current_bounds(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bounds as numbers; in old drafts, `exclusiveMinimum` is true or false."""
    given = {key: schema[key] for key in _BOUNDS if key in schema}
    for exclusive, inclusive in (
        ("exclusiveMinimum", "minimum"),
        ("exclusiveMaximum", "maximum"),
    ):
        is_old = isinstance(given.get(exclusive), bool)
        if is_old and given.pop(exclusive) and inclusive in given:
            given[exclusive] = given.pop(inclusive)
    return given


def _is_finite(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def _integer_bounds(given: Mapping[str, Any]) -> dict[str, Any]:
    lows = [math.ceil(Fraction(given["minimum"]))] if "minimum" in given else []
    if "exclusiveMinimum" in given:
        lows.append(math.floor(Fraction(given["exclusiveMinimum"])) + 1)
    highs = [math.floor(Fraction(given["maximum"]))] if "maximum" in given else []
    if "exclusiveMaximum" in given:
        highs.append(math.ceil(Fraction(given["exclusiveMaximum"])) - 1)
    low = max(lows, default=None)
    high = min(highs, default=None)
    if low is not None and low <= _LARGEST:  # beyond that, llguidance refuses it
        low = _inward(max(low, -_LARGEST), 1)
    if high is not None and high >= -_LARGEST:
        high = _inward(min(high, _LARGEST), -1)
    return _both(low, high)


def _inward(bound: int, step: int) -> int:
    """Return the next integer that a double holds, in the direction of `step`."""
    near = float(bound)
    if (int(near) - bound) * step < 0:
        near = math.nextafter(near, math.inf * step)
    return int(near)


def _number_bounds(given: Mapping[str, Any]) -> dict[str, Any]:
    # Between two bounds, llguidance takes an exclusive one for inclusive.
    low, high = _exact_low(given, 1), _exact_low(given, -1)
    if low is None or high is None:
        alone = {key: value for key, value in given.items() if key.startswith("exclusive")}
        plain = [value for value in (low, high) if value is not None]
        if len(alone) == len(given) == 1 and all(abs(value) < _MANY_DIGITS for value in plain):
            (value,) = alone.values()
            if value == 0 or abs(value) > float(_SMALLEST):
                return alone
    return _both(low, high)


def _exact_low(given: Mapping[str, Any], sign: int) -> int | float | None:
    """Return the inclusive lower bound (`sign` 1) or upper bound (-1) that replaces those given."""
    name = "inimum" if sign > 0 else "aximum"
    bounds = []
    if f"m{name}" in given:
        bounds.append((_decimal(given[f"m{name}"]) * sign, False))
    if f"exclusiveM{name}" in given:
        bounds.append((_decimal(given[f"exclusiveM{name}"]) * sign, True))
    if not bounds:
        return None
    bound, is_exclusive = max(bounds)
    if is_exclusive:
        bound += max(abs(bound) * Decimal("1e-12"), _STEP)
    if 0 < bound < _SMALLEST:
        bound = _SMALLEST
    if bound == bound.to_integral_value() and abs(bound) < 2**53:
        return int(bound) * sign
    if abs(bound) >= _LARGEST:  # beyond that on this side, llguidance refuses it
        return -_LARGEST * sign if bound < 0 else _BEYOND * sign
    near = float(bound)
    while Decimal(repr(near)) < bound:
        near = math.nextafter(near, math.inf)
    return near * sign


def _decimal(value: int | float) -> Decimal:
    return Decimal(value) if isinstance(value, int) else Decimal(repr(value))


def _both(low: Any, high: Any) -> dict[str, Any]:
    if high is None and low is not None and low >= _MANY_DIGITS:
        high = _LARGEST
    if low is None and high is not None and high <= -_MANY_DIGITS:
        low = -_LARGEST
    return {key: value for key, value in (("minimum", low), ("maximum", high)) if value is not None}
