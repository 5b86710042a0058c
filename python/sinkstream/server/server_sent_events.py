"""Server-sent events: the bytes of their chunks, and a response that writes them.

Only text goes through a JSON writer; the rest of a chunk is built once. Strict clients fix the
order and the fields: a first delta with the role, deltas with text, an empty delta with the finish
reason, then the usage if it was asked for, then [DONE].
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import orjson

from sinkstream.text.line_breaks import bytes_on_one_line

DONE = b"data: [DONE]\n\n"
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
EVENT_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)


def error_event(body: bytes) -> bytes:
    """Return the event that ends a failed stream; `body` is an error as JSON."""
    return b"data: " + bytes_on_one_line(body) + b"\n\n"


class Frames:
    """Writes the chunks of one stream."""

    def __init__(self, head: dict[str, Any], *, includes_usage: bool) -> None:
        """Begin each chunk with the fields of `head`: id, object, created, model and others."""
        self._head = b"data: " + orjson.dumps(head)[:-1] + b',"choices":['
        # With usage asked for, every chunk but the last one says that it has none.
        self._end = b'],"usage":null}\n\n' if includes_usage else b"]}\n\n"

    def with_choice(self, choice: bytes, usage: bytes | None = None) -> bytes:
        """Return a chunk with one choice."""
        if usage is None:
            return self._head + choice + self._end
        return self._head + choice + b'],"usage":' + usage + b"}\n\n"

    def last_of_choice(
        self, choice: bytes, extra: dict[str, Any], usage: bytes | None = None
    ) -> bytes:
        """Return the chunk that ends a choice, with sinkstream's own fields."""
        end = b',"sinkstream":' + orjson.dumps(extra) + b"}\n\n"
        return self.with_choice(choice, usage)[: -len(b"}\n\n")] + end

    def without_choices(self, **fields: Any) -> bytes:
        """Return a chunk without choices that has other fields."""
        return self._head + b"]," + orjson.dumps(fields)[1:] + b"\n\n"


def chat_role(index: int) -> bytes:
    """Return the first choice of a chat's stream."""
    return _chat(index, b'{"role":"assistant","content":""}')


def chat_text(index: int, text: str, logprobs: dict[str, Any] | None) -> bytes:
    """Return a choice with text."""
    return _chat(index, b'{"content":' + orjson.dumps(text) + b"}", _json(logprobs))


def chat_thought(index: int, thought: str) -> bytes:
    """Return a choice with a part of a reasoning model's thought."""
    return _chat(index, b'{"reasoning_content":' + orjson.dumps(thought) + b"}")


def chat_call(index: int, call: dict[str, Any]) -> bytes:
    """Return a choice with the beginning of a tool call, or with a part of its arguments."""
    return _chat(index, b'{"tool_calls":[' + orjson.dumps(call) + b"]}")


def with_fields(choice: bytes, **fields: Any) -> bytes:
    """Return a choice with further fields."""
    return choice[:-1] + b"," + orjson.dumps(fields)[1:] if fields else choice


def chat_finish(index: int, reason: str) -> bytes:
    """Return the last choice of a chat's stream."""
    return _chat(index, b"{}", reason=orjson.dumps(reason))


def _chat(index: int, delta: bytes, logprobs: bytes = b"null", reason: bytes = b"null") -> bytes:
    values = (index, delta, logprobs, reason)
    return b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b}' % values


def completion_text(
    index: int, text: str, logprobs: dict[str, Any] | None = None, reason: str | None = None
) -> bytes:
    """Return a choice of a completion's stream."""
    values = (orjson.dumps(text), index, _json(logprobs), orjson.dumps(reason))
    return b'{"text":%b,"index":%d,"logprobs":%b,"finish_reason":%b}' % values


def _json(value: dict[str, Any] | None) -> bytes:
    return b"null" if value is None else orjson.dumps(value)


class EventWriter:
    """One response. Several tasks may write; used with `async with`.

    Leaving the block without `finish` leaves the response incomplete, so that the client cannot
    take it for a complete one.
    """

    def __init__(
        self,
        send: Send,
        progress: Callable[[], str],
        keepalive_s: float,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        """Write to `send`, which waits while the client is slow.

        After `keepalive_s` without a write, a comment with the text of `progress` is written.
        `headers` are in addition to those of every stream.
        """
        self._send = send
        self._progress = progress
        self._keepalive_s = keepalive_s
        self._headers = [*EVENT_HEADERS, *headers]
        self._lock = asyncio.Lock()
        self._written_at = time.monotonic()
        self._timer: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
        # The head leaves with the first part of the body: an empty one.
        await self._send({"type": "http.response.body", "body": b"", "more_body": True})
        self._written_at = time.monotonic()
        self._timer = asyncio.create_task(self._comment())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stop_comments()

    async def write(self, data: bytes) -> None:
        """Write events, whose data are JSON; wait while the client is slow."""
        body = bytes_on_one_line(data)
        async with self._lock:
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
            self._written_at = time.monotonic()

    async def finish(self, data: bytes = b"") -> None:
        """Write the last events and the end of the response."""
        await self._stop_comments()
        body = bytes_on_one_line(data) + DONE
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _comment(self) -> None:
        while True:
            idle_s = time.monotonic() - self._written_at
            if idle_s < self._keepalive_s:
                await asyncio.sleep(self._keepalive_s - idle_s)
            else:
                await self.write(b": %b\n\n" % self._progress().encode())

    async def _stop_comments(self) -> None:
        if self._timer is None:
            return
        timer, self._timer = self._timer, None
        timer.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait([timer])
