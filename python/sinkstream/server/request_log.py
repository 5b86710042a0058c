"""The facts of one request and its response, and the line in the log that is made from them.

Lines go to standard error, for people or as JSON for programs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import orjson

from sinkstream.conversations.turns import TurnEnd, TurnFacts
from sinkstream.structured.grammars import logger as schema_logger

logger = logging.getLogger("sinkstream.server")

Scope = MutableMapping[str, Any]
CLIENT_LEFT = 499
"""The status of a request whose client left before the response began, as in nginx's log."""
_KEY_LETTERS = 8
_MOST_PATH = 100  # characters
FACTS = "facts"
"""The attribute of a log record with what its line says, by name."""
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
    evicted_tokens: int = 0
    """Tokens that have left the window for the replies."""
    pinned_tokens: int = 0
    """Tokens that stay in the window for good, of the reply with the most."""
    dropped_tokens: int = 0
    """Tokens that the request adds, and that the model does not see, of the reply with the most."""
    finish: str = ""
    """Finish reasons of the replies, or an error's code."""
    arrived_at: float = field(default_factory=time.monotonic)
    """When the request's head arrived: `timeout_s` counts from here."""
    ignored: Sequence[str] = ()
    """Fields of the body that are unknown."""
    timeout_s: float | None = None
    """Seconds after which the server ends what precedes the response; None without a limit."""
    is_stream: bool = False
    """Whether the response is a stream of events."""
    is_left: bool = False
    """Whether the rest of the app's response is no longer sent."""
    is_complete: bool = False
    """Whether the end of the response has been sent."""
    is_counted: bool = False
    """Whether it counts among the requests of its key that are in progress."""
    parsed_bytes: int = 0
    """What the text of the body takes in memory, once it is parsed."""
    on_dropped: Callable[[int], object] = lambda count: None
    """Called with the size of the body when it is no longer held."""

    @property
    def key(self) -> str:
        """Return what stands for the client's API key."""
        return short(self.tenant)

    def note_left(self) -> None:
        """Note that the client has left; the status says so unless the response had begun."""
        self.finish = "client_left"
        self.status = self.status or CLIENT_LEFT

    def drop_body(self) -> None:
        """Hold the body no longer."""
        size, self.body = len(self.body), b""
        self.on_dropped(size)

    def note_window(self, ends: Sequence[tuple[TurnFacts, TurnEnd]]) -> None:
        """Note what the model has seen of the replies' conversations."""
        self.evicted_tokens = sum(end.stats.evicted_tokens for _, end in ends)
        self.pinned_tokens = max(facts.pinned_tokens for facts, _ in ends)
        self.dropped_tokens = max(facts.dropped_tokens for facts, _ in ends)

    def write(self, method: str, route: str, seconds: float) -> None:
        """Write the line: what fails is a warning, and probes are for debugging."""
        facts = {
            "key": self.key,
            "queued": f"{self.queued_s:.3f}s",
            "choices": self.choices,
            "prompt_tokens": self.prompt_tokens,
            "generated_tokens": self.generated_tokens,
            "evicted": self.evicted_tokens,
            "pinned": self.pinned_tokens,
            "dropped": self.dropped_tokens,
            "finish": self.finish or "none",
        }
        level = logging.WARNING if self.status >= 500 else logging.INFO
        if self.status == 200 and is_probe(route):
            level = logging.DEBUG
        logger.log(
            level,
            "%s %s %s %d %.3fs %s",
            self.request_id,
            method,
            route,
            self.status,
            seconds,
            " ".join(f"{name}={fact}" for name, fact in facts.items()),
            extra={
                FACTS: {
                    "request_id": self.request_id,
                    "method": method,
                    "route": route,
                    "status": self.status,
                    "seconds": round(seconds, 3),
                    **facts,
                    "queued": round(self.queued_s, 3),
                }
            },
        )


def short(tenant: str) -> str:
    """Return what stands for an API key in the log and in metrics: how its SHA-256 hash begins."""
    return tenant[:_KEY_LETTERS] or "none"


def shown_path(scope: Scope) -> str:
    """Return a path that no route has, for the answer only: it may hold what is secret."""
    return quote(scope["path"])[:_MOST_PATH]


def is_probe(path: str) -> bool:
    """Return whether a path is one that programs ask for again and again."""
    return path.removeprefix("/v1") in ("/health", "/metrics")


def request_log_of(scope: Scope) -> RequestLog:
    """Return the log that the middleware has put into a scope."""
    log: RequestLog = scope[KEY]
    return log


class _AsJson(logging.Formatter):
    """Writes an object in each line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record with its facts, if it is a request's, else with its message."""
        facts = getattr(record, FACTS, None)
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            **({"message": record.getMessage()} if facts is None else facts),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line).decode()


def log_to_stderr(level: str, form: str) -> None:
    """Write what has at least this level, as "text" or "json"."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(_AsJson() if form == "json" else text)
    for one in (logger, schema_logger):
        one.addHandler(handler)
        one.setLevel(level.upper())
        one.propagate = False
