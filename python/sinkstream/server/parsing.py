"""Reads the body of a request: JSON, then its schema. A wrong value gets a one-sentence error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import orjson
from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.requests import Request

from sinkstream.server.errors import ApiError, invalid, too_large
from sinkstream.server.pool import Pool
from sinkstream.server.request_bodies import SMALL_BYTES, Body
from sinkstream.server.request_log import RequestLog
from sinkstream.server.running_replies import in_time

_Body = TypeVar("_Body", bound=Body)

MOST_VALUES = 1 << 20
"""Keys and values of a body. Each is an object in memory, up to sixty times as large as its text,
and the GIL is held until all of them are made: a tenth of a second for as many as these."""
MOST_PARTS = 1 << 17
"""Those of them that are keys, arrays or objects, which take longer: as many as these, likewise."""
_WIDEST = 4  # bytes of each character of a string that has one outside of the first plane
_SLICE = 1 << 18  # bytes
# What precedes or begins a key, an array or an object in JSON; a comma, any other value. The first
# value of an array is not counted.
_PARTS = (b":", b"[", b"{")
MOST_DEPTH = 200
"""Levels of arrays and objects: what a response repeats of a request has a few more, and may have
254."""
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_FLAT = bytes(set(range(256)) - _STEPS.keys())
_SHOWN = 40

_RULES = {
    "missing": "must be given",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be a string",
    "list_type": "must be an array",
    "dict_type": "must be an object",
    "is_instance_of": "must be an object",
    "model_type": "must be an object",
    "greater_than_equal": "must be at least {ge}",
    "too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
}
_SAY_ALL = ("missing", "string_too_long", "too_short")  # what was found follows from these rules
_MEMBERS = ("int", "str")  # of unions, and named like keys; the others have brackets
# Names that clients give their conversations, the most explicit one first.
_SESSION_HEADERS = (
    "x-session-id",
    "x-session-affinity",
    "session_id",
    "session-id",
    "x-claude-code-session-id",
    "x-openwebui-chat-id",
    "x-conversation-id",
)
_MAX_SESSION_KEY = 512


async def parse(log: RequestLog, pool: Pool, kind: type[_Body]) -> _Body:
    """Return the body of a request as `kind`; refuse what is not that."""
    read = partial(_outcome, log, kind)
    try:
        async with in_time(log.arrived_at, log.timeout_s):
            outcome = await pool.run_if(len(log.body) > SMALL_BYTES, read)
    finally:
        log.drop_body()  # only now: until then it is held, and counts
    if isinstance(outcome, ApiError):
        raise outcome
    log.ignored = outcome.ignored
    return outcome


def _outcome(log: RequestLog, kind: type[_Body]) -> _Body | ApiError:
    """Return the body of a request, or its error: not the one that was raised, which holds it."""
    try:
        read, log.parsed_bytes = parse_body(log.body, kind)
    except ApiError as error:
        return replace(error)
    return read


def parse_body(body: bytes | bytearray, kind: type[_Body]) -> tuple[_Body, int]:
    """Return the body of a request, and what its text takes in memory.

    If a key occurs twice, the last value counts.
    """
    values, is_plain = _object_of(body)
    read = as_kind(values, kind)
    read.note_size(body)
    return read, len(body) if is_plain else _WIDEST * len(body)


def object_of(body: bytes | bytearray | str) -> dict[str, Any]:
    """Return the JSON object that a body is; refuse any other body."""
    return _object_of(body.encode() if isinstance(body, str) else body)[0]


def _object_of(body: bytes | bytearray) -> tuple[dict[str, Any], bool]:
    """Return the JSON object that a body is, and whether all of its characters are ASCII."""
    shape = shape_of(body)
    if shape.values > MOST_VALUES:
        raise too_large(f"at most {MOST_VALUES} keys and values")
    if shape.parts > MOST_PARTS:
        raise too_large(f"at most {MOST_PARTS} keys, arrays and objects")
    if shape.depth > MOST_DEPTH:
        raise invalid(
            f"body: must be nested at most {MOST_DEPTH} levels deep, but is {shape.depth}.",
            code="invalid_json",
        )
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise invalid(f"body: must be JSON, but is not: {error}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise invalid(f"body: must be a JSON object, but is {_kind(value)}.", code="invalid_json")
    return value, shape.is_plain


class Shape(NamedTuple):
    """What a JSON text takes in memory."""

    values: int
    """Keys and values."""
    parts: int
    """Those of them that are keys, arrays or objects."""
    depth: int
    """How deep arrays and objects are nested; not counted to the end if there are too many."""
    is_plain: bool
    """Whether all characters are ASCII."""


def shape_of(body: bytes | bytearray) -> Shape:
    """Return the shape of a JSON text, which need not be valid.

    A slice is looked at at a time: other threads wait for the GIL during each call.
    """
    values = parts = begin = level = depth = 0
    is_plain, is_string = body.isascii(), False
    while begin < len(body):
        part = bytes(body[begin : begin + _SLICE])
        if (len(part) - len(part.rstrip(b"\\"))) % 2:  # it ends within an escaped character
            part += body[begin + len(part) : begin + len(part) + 1]
        begin += len(part)
        part = part.replace(b"\\\\", b"")  # each other backslash belongs to what follows
        is_plain = is_plain and b"\\u" not in part
        pieces = part.replace(b'\\"', b"").split(b'"')
        outside = b"".join(pieces[is_string::2])  # the others are in strings
        is_string ^= len(pieces) % 2 == 0
        parts += sum(map(outside.count, _PARTS))
        values += outside.count(b",")
        if parts <= MOST_PARTS:
            steps = map(_STEPS.__getitem__, outside.translate(None, _FLAT))
            levels = list(accumulate(steps, initial=level))
            level, depth = levels[-1], max(depth, max(levels))
    return Shape(values + parts, parts, depth, is_plain)


def as_kind(value: dict[str, Any], kind: type[_Body]) -> _Body:
    """Return a JSON object as what `kind` describes; refuse what is not that."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False)) from None


def _refusal(errors: list[Any]) -> ApiError:
    """Return the answer for the first wrong field; it names all types that may be there.

    A field with several types has an error for each. The one furthest inside the value belongs to
    the type that the client meant: for `"stop": ["a", 1]`, that is the array, and item 1 is wrong.
    """
    name = errors[0]["loc"][0]
    of_field = [error for error in errors if error["loc"][0] == name]
    path = max((_path(error) for error in of_field), key=_depth)
    at_path = [error for error in of_field if _path(error) == path]
    rules = dict.fromkeys(_rule(error) for error in at_path)
    rule = " or ".join(rules).replace(" or must be ", " or ")
    first = at_path[0]
    found = "" if first["type"] in _SAY_ALL else f", but is {_kind(first['input'])}"
    return invalid(
        f"body: `{'.'.join(str(part)[:_SHOWN] for part in path)}` {rule}{found}.", str(name)
    )


def _path(error: Mapping[str, Any]) -> tuple[int | str, ...]:
    """Return the keys and indices of a location, without the members of unions."""
    return tuple(
        part
        for part in error["loc"]
        if isinstance(part, int) or ("[" not in part and part not in _MEMBERS)
    )


def _depth(path: tuple[int | str, ...]) -> tuple[int, list[int]]:
    """Return how far inside a value a path is; of two items, the later one is further."""
    return len(path), [part for part in path if isinstance(part, int)]


def _rule(error: Mapping[str, Any]) -> str:
    known = _RULES.get(error["type"])
    return known.format(**error.get("ctx", {})) if known else f"is refused: {error['msg']}"


def _kind(value: Any) -> str:
    """Return a value if it is a number or a word; otherwise its type, so that no text leaks."""
    if value is None or isinstance(value, bool | int | float):
        return str(orjson.dumps(value).decode())[:_SHOWN]
    names: dict[Any, str] = {str: "a string", list: "an array", dict: "an object"}
    return names.get(type(value), "of another type")


def session_key(headers: Headers, cache_key: str | None) -> str | None:
    """Return the name in the headers, or else the body's `prompt_cache_key`; refuse long ones."""
    header = next((name for name in _SESSION_HEADERS if headers.get(name)), None)
    key = cache_key if header is None else headers[header]
    if key is not None and len(key) > _MAX_SESSION_KEY:
        where, name = ("body", "prompt_cache_key") if header is None else ("headers", header)
        rule = f"must have at most {_MAX_SESSION_KEY} characters, but has {len(key)}."
        raise invalid(f"{where}: `{name}` {rule}", name)
    return key or None


def number_in(request: Request, name: str, default: int, low: int, high: int) -> int:
    """Return a number of a request's query; refuse one that is not in [low, high]."""
    given = request.query_params.get(name)
    if given is None:
        return default
    is_number = given.isascii() and given.isdigit() and len(given) < 20
    if not is_number or not low <= int(given) <= high:
        raise invalid(f"query: `{name}` must be an integer in [{low}, {high}].", name)
    return int(given)
