"""One request and its answer, as the gate, the routes and the access line see it."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

Scope = MutableMapping[str, Any]
KEY = "sinkstream"
"""The key of the exchange in an ASGI scope."""


@dataclass(slots=True)
class Exchange:
    """Facts about a request, from which the access line is made."""

    request_id: str
    tenant: str = ""
    """A hash of the API key; "" without keys."""
    body: bytes | bytearray = b""
    status: int = 0
    """The status of the response; 0 before its head."""
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

    def take_body(self) -> bytes | bytearray:
        """Return the body, and drop it."""
        body, self.body = self.body, b""
        self.on_taken(len(body))
        return body


def exchange_of(scope: Scope) -> Exchange:
    """Return the exchange that the gate has put into a scope."""
    exchange: Exchange = scope[KEY]
    return exchange
