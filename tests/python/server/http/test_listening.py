"""The server's socket: many may wait for the server, which accepts a few at a time."""

from __future__ import annotations

import asyncio
import socket

from sinkstream.server.serve import ACCEPTED_AT_ONCE, open_socket

WAITING = 200


def test_a_crowd_is_queued_and_accepted_a_few_at_a_time() -> None:
    accepted = 0

    class Counted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            nonlocal accepted
            accepted += 1
            transport.abort()  # type: ignore[attr-defined]

    async def run() -> list[int]:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Counted, sock=listener, backlog=ACCEPTED_AT_ONCE)
        # The loop does not run meanwhile: the kernel must queue all of them.
        clients = [socket.create_connection(listener.getsockname(), 5) for _ in range(WAITING)]
        per_turn = []
        while accepted < WAITING:
            before = accepted
            await asyncio.sleep(0)
            per_turn.append(accepted - before)
        for client in clients:
            client.close()
        server.close()
        return per_turn

    with open_socket("127.0.0.1", 0) as listener:
        per_turn = asyncio.run(asyncio.wait_for(run(), 60))
    assert 0 < max(per_turn) <= ACCEPTED_AT_ONCE
