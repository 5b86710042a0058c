"""A server that returns every message of a WebSocket, on the protocol of `sinkstream serve`.

    python -m tests.conformance.autobahn.echo_server

It prints its address, and runs until it is ended. Autobahn's client expects an echo, which the
server itself does not offer.
"""

from __future__ import annotations

import asyncio
from typing import Any

from sinkstream.server.config import ServerConfig
from sinkstream.server.serve import address_of, make_server, open_socket
from sinkstream.server.service import Service


async def echo(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Accept a WebSocket, and return what it sends until it is closed."""
    assert scope["type"] == "websocket"
    await receive()
    await send({"type": "websocket.accept"})
    while (event := await receive())["type"] == "websocket.receive":
        kind = "text" if event.get("text") is not None else "bytes"
        await send({"type": "websocket.send", kind: event[kind]})


def main() -> None:
    """Serve."""
    app: Any = echo
    listener = open_socket("127.0.0.1", 0)
    print(address_of(listener), flush=True)
    asyncio.run(make_server(app, Service(ServerConfig())).serve(sockets=[listener]))


if __name__ == "__main__":
    main()
