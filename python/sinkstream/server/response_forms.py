"""What all responses of a protocol have in common: the form of an error, and that of a stream.

A protocol is known by the path, so that requests that are refused before they are routed get its
errors as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import orjson

from sinkstream.server.errors import ApiError
from sinkstream.text.line_breaks import bytes_on_one_line

Header = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class ResponseForm:
    """How one protocol writes."""

    error: Callable[[ApiError], bytes]
    """Returns the body of a response that says what is wrong."""
    stream_type: Header
    """The content type of a stream."""
    failure: Callable[[ApiError], bytes]
    """Returns what ends a stream that fails."""
    keep_alive: Callable[[str], bytes]
    """Returns what keeps an idle stream open, and means nothing to a client; given a progress."""
    end: bytes = b""
    """What ends a complete stream."""
    id_headers: tuple[bytes, ...] = (b"x-request-id",)
    """Those that name the request."""

    @property
    def stream_headers(self) -> tuple[Header, ...]:
        """Return the headers of a stream: nothing between here and the client is to keep it."""
        return (
            self.stream_type,
            (b"cache-control", b"no-cache, no-transform"),
            (b"x-accel-buffering", b"no"),
        )


def event(data: bytes, name: bytes = b"") -> bytes:
    """Return a server-sent event with JSON as its data."""
    return (b"event: " + name + b"\n" if name else b"") + b"data: " + data + b"\n\n"


_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")

OPENAI = ResponseForm(
    error=lambda error: error.as_json(),
    stream_type=_EVENTS,
    failure=lambda error: event(bytes_on_one_line(error.as_json())),
    keep_alive=lambda progress: b": %b\n\n" % progress.encode(),
    end=event(b"[DONE]"),
)
"""Also of all paths that belong to no other protocol."""

# ---- Anthropic's API -----------------------------------------------------------------------------

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def _as_anthropic(error: ApiError) -> bytes:
    of_client = "invalid_request_error" if error.status < 500 else "api_error"
    kind = _TYPES.get(error.status, of_client)
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": error.message}})


ANTHROPIC = ResponseForm(
    error=_as_anthropic,
    stream_type=_EVENTS,
    failure=lambda error: event(bytes_on_one_line(_as_anthropic(error)), b"error"),
    keep_alive=lambda progress: event(b'{"type":"ping"}', b"ping"),
    id_headers=(b"x-request-id", b"request-id"),
)

# ---- Ollama's API --------------------------------------------------------------------------------


def _as_ollama(error: ApiError) -> bytes:
    return orjson.dumps({"error": error.message})


OLLAMA = ResponseForm(
    error=_as_ollama,
    stream_type=(b"content-type", b"application/x-ndjson"),
    failure=lambda error: bytes_on_one_line(_as_ollama(error)) + b"\n",
    keep_alive=lambda progress: b" ",  # JSON may begin with spaces, but no line may be empty
)


def form_of(path: str) -> ResponseForm:
    """Return the form of the responses to requests for a path."""
    if path.startswith("/api/"):
        return OLLAMA
    inner = path.removeprefix("/v1")
    return ANTHROPIC if inner == "/messages" or inner.startswith("/messages/") else OPENAI


def is_stream(headers: list[Header]) -> bool:
    """Return whether headers are those of a stream."""
    return any(form.stream_type in headers for form in (OPENAI, OLLAMA))
