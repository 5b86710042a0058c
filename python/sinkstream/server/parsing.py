"""Reads the body of a request: JSON, then its schema. A wrong value gets a one-sentence error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import orjson
from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.requests import Request

from sinkstream.server.errors import ApiError, invalid, too_large
from sinkstream.server.pool import Pool
from sinkstream.server.request_bodies import SMALL_BYTES, Body
from sinkstream.server.request_log import RequestLog

_Body = TypeVar("_Body", bound=Body)

MOST_VALUES = 1 << 20
"""Keys and values of a body. Each is an object in memory, up to sixty times as large as its text,
and the GIL is held until all of them are made: a third of a second for as many as these."""
_SHOWN = 40
# What precedes or begins a value in JSON; the first value of an object or array is not counted.
_STRUCTURE = b",:[{"
_OTHERS = bytes(set(range(256)) - set(_STRUCTURE))

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
}
_SAY_ALL = ("missing", "too_short")  # what was found follows from these rules
_MEMBERS = ("str",)  # of unions, and named like keys; the others have brackets
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
    read = partial(_outcome, log.body, kind)
    try:
        outcome = read() if len(log.body) <= SMALL_BYTES else await pool.run(read)
    finally:
        log.take_body()  # only now: until then it is held, and counts
        del read
    if isinstance(outcome, ApiError):
        raise outcome
    return outcome


def _outcome(body: bytes | bytearray, kind: type[_Body]) -> _Body | ApiError:
    """Return the body of a request, or its error: not the one that was raised, which holds it."""
    try:
        return parse_body(body, kind)
    except ApiError as error:
        return replace(error)


def parse_body(body: bytes | bytearray, kind: type[_Body]) -> _Body:
    """Return the body of a request; if a key occurs twice, the last value counts."""
    read = as_kind(object_of(body), kind)
    read.note_size(body)
    return read


def object_of(body: bytes | bytearray | str) -> dict[str, Any]:
    """Return the JSON object that a body is; refuse any other body."""
    if len(body) > MOST_VALUES:
        _check_values(body.encode() if isinstance(body, str) else body)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise invalid(f"body: must be JSON, but is not: {error}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise invalid(f"body: must be a JSON object, but is {_kind(value)}.", code="invalid_json")
    return value


def _check_values(body: bytes | bytearray) -> None:
    """Refuse a body with too many keys and values."""
    if sum(body.count(mark) for mark in _STRUCTURE) <= MOST_VALUES:
        return  # even with those inside of strings
    if b"\\" in body:  # without escaped quotes, every quote begins or ends a string
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    begin = count = 0
    while begin >= 0 and count <= MOST_VALUES:
        end = body.find(b'"', begin)
        outside = body[begin:end] if end >= 0 else body[begin:]
        count += len(outside.translate(None, _OTHERS))
        begin = -1 if end < 0 else body.find(b'"', end + 1) + 1 or -1
    if count > MOST_VALUES:
        raise too_large(f"at most {MOST_VALUES} keys and values")


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
    given = next((headers[name] for name in _SESSION_HEADERS if name in headers), None)
    key = given or cache_key
    if key is not None and len(key) > _MAX_SESSION_KEY:
        raise invalid(f"headers: a session's name must have at most {_MAX_SESSION_KEY} characters.")
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
