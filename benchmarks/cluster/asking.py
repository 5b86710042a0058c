"""A client of a real server, which streams one response at a time."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

WORD = "a "
_HEAD = (
    "POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    "Content-Type: application/json\r\nX-Session-Id: {session}\r\nContent-Length: {length}\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A response that has arrived."""

    response: dict[str, Any]
    first_text_at: float | None
    """On the clock of `time.perf_counter`; None if it has no text."""


async def ask(
    port: int, session: str, previous: str | None, words: int, tokens: int
) -> Asked | None:
    """Ask for a response of `tokens` tokens; return None if the server refuses."""
    body = {
        "input": WORD * words, "max_output_tokens": tokens, "ignore_eos": True, "stream": True,
        "previous_response_id": previous, "seed": 1,
    }  # fmt: skip
    payload = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(_HEAD.format(session=session, length=len(payload)).encode() + payload)
        if b" 200 " not in await reader.readline():
            return None
        first_at, last = None, b""
        async for line in reader:
            if first_at is None and line.startswith(b"data: ") and b"output_text.delta" in line:
                first_at = time.perf_counter()
            if line.startswith(b"data: {"):
                last = line
    finally:
        writer.close()
    return Asked(json.loads(last[6:])["response"], first_at)
