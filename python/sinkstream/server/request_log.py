"""The facts of one request and its response, and the line in the log that is made from them."""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger("sinkstream.server")

Scope = MutableMapping[str, Any]
CLIENT_LEFT = 499
"""The status of a request whose client left before the response began, as in nginx's log."""
KEY = "sinkstream"
"""The key of the log in an ASGI scope."""


@dataclass(slots=True)
class RequestLog:
    """One request, as the middleware and the routes know it."""

    request_id: str
    tenant: str = ""
    """A hash of the API key; "" without keys."""
    body: bytes | bytearray = b""
    status: int = 0
    """The status of the response; 0 before its head, and `CLIENT_LEFT` if there was none."""
    queued_s: float = 0.0
    """The longest time that a reply of the request has waited for a seat."""
    choices: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    finish: str = ""
    """Finish reasons of the replies, or an error's code."""
    is_stream: bool = False
    """Whether the response is a stream of events."""
    is_left: bool = False
    """Whether the rest of the app's response is no longer sent."""
    is_complete: bool = False
    """Whether the end of the response has been sent."""
    on_taken: Callable[[int], None] = lambda count: None
    """Called with the size of the body when it is no longer held."""

    def note_left(self) -> None:
        """Note that the client has left; the status says so unless the response had begun."""
        self.finish = "client_left"
        self.status = self.status or CLIENT_LEFT

    def take_body(self) -> bytes | bytearray:
        """Return the body, and drop it."""
        body, self.body = self.body, b""
        self.on_taken(len(body))
        return body

    def write(self, method: str, route: str, seconds: float) -> None:
        """Write the line."""
        logger.info(
            "%s %s %s %d %.3fs queued=%.3fs choices=%d prompt_tokens=%d generated_tokens=%d "
            "finish=%s",
            self.request_id,
            method,
            route,
            self.status,
            seconds,
            self.queued_s,
            self.choices,
            self.prompt_tokens,
            self.generated_tokens,
            self.finish or "none",
        )


def request_log_of(scope: Scope) -> RequestLog:
    """Return the log that the middleware has put into a scope."""
    log: RequestLog = scope[KEY]
    return log
