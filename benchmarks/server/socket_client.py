"""A small client for responses over a WebSocket."""

from __future__ import annotations

import json
from typing import Any

from websockets.asyncio.client import connect

_ENDS = ("response.completed", "response.incomplete")


async def respond(port: int, body: dict[str, Any]) -> dict[str, Any]:
    """Return a response that is streamed over a socket of its own.

    Args:
        port: The server's.
        body: The request.

    Raises:
        OSError: The connection was lost.
        RuntimeError: The response was refused, or failed.
    """
    address = f"ws://127.0.0.1:{port}/v1/responses"
    async with connect(address, compression=None, proxy=None, open_timeout=60) as socket:
        await socket.send(json.dumps({"type": "response.create", **body}))
        while True:
            event = json.loads(await socket.recv())
            if event["type"] in _ENDS:
                return dict(event["response"])
            if event["type"] in ("error", "response.failed"):
                raise RuntimeError(json.dumps(event))
