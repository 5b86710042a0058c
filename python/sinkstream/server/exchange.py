"""One request and its answer, as the gate, the routes and the access line see it."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

Scope = MutableMapping[str, Any]
KEY = "sinkstream"
"""Of the exchange in an ASGI scope."""


@dataclass(slots=True)
class Exchange:
    """Facts of a request; the access line is made from them."""

    request_id: str
    tenant: str = ""
    """A hash of the API key; "" without keys."""
    body: bytes | bytearray = b""
    status: int = 0
    """Of the response; 0 before its head."""
    choices: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    finish: str = ""
    """Finish reasons of the replies, or an error's code."""
    is_stream: bool = False
    """Whether the response is one of events."""
    is_left: bool = False
    """Whether nothing more of the app's response is sent."""
    is_complete: bool = False
    """Whether the end of the response has been sent."""
    on_taken: Callable[[int], None] = lambda count: None
    """Called with the size of the body when it is no longer held."""

    def take_body(self) -> bytes | bytearray:
        """Return the body, and keep it no longer."""
        body, self.body = self.body, b""
        self.on_taken(len(body))
        return body


def exchange_of(scope: Scope) -> Exchange:
    """Return the exchange that the gate has put into a scope."""
    exchange: Exchange = scope[KEY]
    return exchange
