"""The facts of one request and its response, and the line in the log that is made from them."""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from sinkstream.conversations.turns import TurnEnd, TurnFacts

logger = logging.getLogger("sinkstream.server")

Scope = MutableMapping[str, Any]
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
    """The status of the response; 0 before its head."""
    queued_s: float = 0.0
    """The longest time that a reply of the request has waited for a seat."""
    choices: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    evicted_tokens: int = 0
    """Tokens that have left the window for the replies."""
    pinned_tokens: int = 0
    """Tokens that stay in the window for good, of the reply with the most."""
    dropped_tokens: int = 0
    """Tokens that the request adds, and that the model does not see, of the reply with the most."""
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

    def note_window(self, ends: Sequence[tuple[TurnFacts, TurnEnd]]) -> None:
        """Note what the model has seen of the replies' conversations."""
        self.evicted_tokens = sum(end.stats.evicted_tokens for _, end in ends)
        self.pinned_tokens = max(facts.pinned_tokens for facts, _ in ends)
        self.dropped_tokens = max(facts.dropped_tokens for facts, _ in ends)

    def write(self, method: str, route: str, seconds: float) -> None:
        """Write the line."""
        logger.info(
            "%s %s %s %d %.3fs queued=%.3fs choices=%d prompt_tokens=%d generated_tokens=%d "
            "evicted=%d pinned=%d dropped=%d finish=%s",
            self.request_id,
            method,
            route,
            self.status,
            seconds,
            self.queued_s,
            self.choices,
            self.prompt_tokens,
            self.generated_tokens,
            self.evicted_tokens,
            self.pinned_tokens,
            self.dropped_tokens,
            self.finish or "none",
        )


def request_log_of(scope: Scope) -> RequestLog:
    """Return the log that the middleware has put into a scope."""
    log: RequestLog = scope[KEY]
    return log
