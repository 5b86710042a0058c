"""What arrives is received into one buffer that all connections share."""

from __future__ import annotations

import asyncio
import tracemalloc

from sinkstream.server.http_limits import RECEIVE_BYTES, BoundedHttp, Connections, Counted
from sinkstream.server.socket_limits import BoundedSocket


class Base(asyncio.Protocol):
    """The part of uvicorn's protocols that receives."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.loop = asyncio.get_running_loop()
        self.received = bytearray()
        self.sizes: list[int] = []
        self.ended = self.loop.create_future()

    def data_received(self, data: bytes) -> None:
        assert type(data) is bytes  # a copy: the buffer is used again
        self.received += data
        self.sizes.append(len(data))

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(exc)


class Receiver(Counted, Base, asyncio.BufferedProtocol):
    """A counted connection that keeps what it gets."""


def received(*sent: bytes, parts: int = 1) -> list[Receiver]:
    """Send each of these over a connection of its own, one by one; return the protocols."""
    connections = Connections(limit=100, send_timeout_s=60)
    receivers: list[Receiver] = []

    def receiver() -> Receiver:
        receivers.append(Receiver(connections=connections))
        return receivers[-1]

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(receiver, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        writers = []
        for i in range(len(sent)):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            while len(receivers) == i:  # the protocols are in the order of what is sent
                await asyncio.sleep(0)
            writers.append(writer)
        for part in range(parts):
            for writer, data in zip(writers, sent, strict=True):
                size = -(-len(data) // parts)
                writer.write(data[part * size : (part + 1) * size])
                await writer.drain()
                await asyncio.sleep(0)
        for writer in writers:
            writer.close()
        assert await asyncio.gather(*(one.ended for one in receivers)) == [None] * len(sent)
        server.close()

    asyncio.run(asyncio.wait_for(run(), 60))
    return receivers


def test_each_connection_gets_its_own_bytes_in_parts_of_a_largest_size() -> None:
    sent = [bytes([i]) * (1 << 21) for i in range(3)]
    found = received(*sent, parts=5)
    assert [bytes(one.received) for one in found] == sent
    assert not any(found[0].get_buffer(-1))  # it holds nothing of a request that has ended
    assert max(max(one.sizes) for one in found) <= RECEIVE_BYTES


def test_a_few_bytes_take_little_memory() -> None:
    received(b"a")  # modules are loaded
    tracemalloc.start()
    try:
        received(b"a" * 1000, parts=100)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < RECEIVE_BYTES + 100_000


def test_both_protocols_of_the_server_receive_so() -> None:
    for protocol in (BoundedHttp, BoundedSocket):
        assert issubclass(protocol, asyncio.BufferedProtocol)
        assert protocol.get_buffer is Counted.get_buffer
        assert protocol.eof_received is not asyncio.BufferedProtocol.eof_received  # uvicorn's
