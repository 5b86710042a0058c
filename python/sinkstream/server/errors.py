"""Errors as clients get them: a status, and OpenAI's JSON form."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from sinkstream.conversations.errors import ReadingEnded, SessionMoved, StateLost, StoreError
from sinkstream.conversations.turns import NotFound
from sinkstream.errors import (
    CapacityError,
    CheckpointError,
    EngineDead,
    InvalidArgument,
    SessionBusy,
    SinkstreamError,
)

logger = logging.getLogger("sinkstream.server")

# OpenAI's clients repeat a request after these unless told otherwise.
NO_RETRY = ((b"x-should-retry", b"false"),)
RETRY = ((b"x-should-retry", b"true"),)
_STORE = "server: the store of conversations cannot be read or written; the server's log says why."
# A TypeError of a checked argument begins with the call that refuses it; others are bugs.
_OF_ARGUMENT = re.compile(r"(stream|session): ")


# A client knows neither the functions of Python that refuse a value, nor what a model is read from.
_OF_CALL = re.compile(r"(body: (?!must )|(delete|responses|session|sessions|stream): )")
_NONE = re.compile(r"\bbut is (None|of type NoneType)\b")
# Only the operator can change what the model is loaded with.
_LOAD_AGAIN = re.compile(
    r"\b([Ll])?(?:oad (?:it|the model) with|use) (?=an? [a-z ]*`(?:window|max_sequences)`)"
)
_OPTION = re.compile(r"`(window|max_sequences)`")
_CHECKPOINT = re.compile(r"\b([Tt])he checkpoint\b")


def _for_clients(message: str) -> str:
    """Return an error's sentence as clients read it: it names the field first."""
    if (found := _OF_CALL.match(message)) is not None:
        message = message[found.end() :]
        message = message[:1].upper() + message[1:]
    message = _LOAD_AGAIN.sub(_restart, message)
    message = _OPTION.sub(lambda found: f"`--{found[1].replace('_', '-')}`", message)
    return _NONE.sub("but is null", _CHECKPOINT.sub(r"\1he model", message))


def _restart(found: re.Match[str]) -> str:
    return ("Restart" if found[1] == "L" else "restart") + " the server with "


@dataclass(slots=True)
class ApiError(Exception):
    """The response to a request that fails."""

    status: int
    type: str
    code: str
    message: str
    param: str | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def __post_init__(self) -> None:
        self.message = _for_clients(self.message)

    def __str__(self) -> str:
        return self.message

    def as_json(self) -> bytes:
        """Return the body of the response, and the data of an error event."""
        return orjson.dumps({"error": self.fields()})

    def fields(self) -> dict[str, Any]:
        """Return the error object."""
        return {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }


class StreamAborted(Exception):
    """A stream has ended with an error event: the connection must be cut."""


def invalid(message: str, param: str | None = None, code: str = "invalid_argument") -> ApiError:
    """Return the error for a request that can never succeed."""
    return ApiError(400, "invalid_request_error", code, message, param)


def not_supported(what: str, param: str) -> ApiError:
    """Return the error for a feature that this server does not have."""
    return invalid(f"`{param}`: {what} is not yet supported by this server.", param, "unsupported")


def too_large(rule: str) -> ApiError:
    """Return the error for a body that must have what `rule` says, such as "at most 9 bytes"."""
    message = f"body: must have {rule}, but has more."
    return ApiError(413, "invalid_request_error", "body_too_large", message)


def at_capacity(message: str, retry_after_s: int) -> ApiError:
    """Return the error for a request that may be repeated later."""
    headers = ((b"retry-after", str(retry_after_s).encode()),)
    return ApiError(429, "rate_limit_error", "capacity", message, headers=headers)


def unavailable(code: str, message: str) -> ApiError:
    """Return the error of a server that is loading, draining or dead."""
    headers = NO_RETRY if code == "engine_dead" else RETRY
    return ApiError(503, "service_unavailable", code, message, headers=headers)


def internal() -> ApiError:
    """Return the error for a failure of our own, without its details."""
    message = "server: an internal error occurred. This is a bug in sinkstream; please report it."
    return ApiError(500, "server_error", "internal", message, headers=NO_RETRY)


def from_exception(error: BaseException, names: Mapping[str, str] | None = None) -> ApiError | None:
    """Return the error response for an exception; None for a bug.

    `names` maps arguments of `Model.stream` to the request's fields that they come from.
    """
    if isinstance(error, ApiError):
        return error
    names = names or {}
    message = re.sub(r"`(\w+)`", lambda found: f"`{names.get(found[1], found[1])}`", str(error))
    if isinstance(error, InvalidArgument | CheckpointError):
        param = error.param
        param = names.get(param, param) if param else None
        code = error.code if isinstance(error, InvalidArgument) else "invalid_argument"
        return invalid(message, param, code)
    if isinstance(error, TypeError) and (found := _OF_ARGUMENT.match(str(error))):
        named = re.search(r"`(\w+)`", message[found.end() :])
        return invalid(message, named[1] if named else None)
    if isinstance(error, NotFound):
        return invalid(message, "previous_response_id", "previous_response_not_found")
    if isinstance(error, StoreError):
        logger.error("%s", error)  # it names a path, which is not the client's business
        return ApiError(503, "service_unavailable", error.code, _STORE, headers=NO_RETRY)
    if isinstance(error, SessionMoved):
        return ApiError(409, "conflict_error", error.code, message, headers=RETRY)
    if isinstance(error, SessionBusy | StateLost):
        return ApiError(409, "conflict_error", error.code, message, headers=NO_RETRY)
    if isinstance(error, CapacityError):
        return at_capacity(message, 1)
    if isinstance(error, EngineDead | ReadingEnded):
        return unavailable(error.code, message)
    if isinstance(error, SinkstreamError):
        return ApiError(500, "server_error", error.code, message, headers=NO_RETRY)
    return None
