"""A small client for streams: it measures when events arrive and adds little work of its own."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Reply:
    """A streamed reply."""

    began: float
    times: list[float] = field(default_factory=list)  # of each event that has text
    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None

    @property
    def first_s(self) -> float:
        """Return the seconds from the request to the first text."""
        return self.times[0] - self.began

    @property
    def gaps_s(self) -> list[float]:
        """Return the seconds between events."""
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]


async def chat(
    port: int,
    body: dict[str, Any],
    seen: Callable[[Reply], object] = lambda _: None,
    *,
    key: str = "none",
) -> Reply:
    """Stream a chat completion on a connection of its own.

    Args:
        port: The server's.
        body: The request.
        seen: Is called after each event.
        key: The API key, for servers that have any.

    Raises:
        OSError: The connection was lost.
        RuntimeError: The status is not 200, or the stream ended without `[DONE]`.
    """
    body = {"stream": True, "stream_options": {"include_usage": True}, **body}
    payload = json.dumps(body).encode()
    reply = Reply(time.perf_counter())
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        b"Authorization: Bearer %b\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        % (key.encode(), len(payload))
        + payload
    )
    try:
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError((status + await reader.read()).decode())
        async for line in reader:
            if line.startswith(b"data: {"):
                _add(reply, json.loads(line[6:]))
                seen(reply)
            elif line.startswith(b"data: [DONE]"):
                return reply
    finally:
        writer.close()
    raise RuntimeError("a stream ended without [DONE]")


def _add(reply: Reply, event: dict[str, Any]) -> None:
    if event.get("usage"):
        reply.usage = event["usage"]
    for choice in event.get("choices", ()):
        text = choice["delta"].get("content")
        if text:
            reply.times.append(time.perf_counter())
            reply.text += text
        reply.finish_reason = choice["finish_reason"] or reply.finish_reason
