"""Requests to a peer, whose part is played by a plain socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

pytest.importorskip("httpx", reason="needs the extra `cluster`")

from sinkstream.cluster.peers.forwarding import PeerGone, Peers

HOST = [(b"host", b"peer")]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-own: a\r\n\r\nok"


def answered(*parts: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Return what is fetched from a peer that sends these parts."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.close()

    async def ask(address: str) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        async with Peers().fetch(address, "GET", b"/", HOST, b"") as response:
            body = b"".join([part async for part in response.parts()])
            return response.status, response.headers, body

    return asyncio.run(_with_peer(talk, ask))


async def _with_peer(
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    ask: Callable[[str], Awaitable[tuple[int, list[tuple[bytes, bytes]], bytes]]],
) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    async with await asyncio.start_server(talk, "127.0.0.1", 0) as peer:
        port = peer.sockets[0].getsockname()[1]
        return await asyncio.wait_for(ask(f"http://127.0.0.1:{port}"), 10)


CONTINUE = b"HTTP/1.1 100 Continue\r\nx-early: b\r\n\r\n"
HINTS = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"


@pytest.mark.parametrize(
    "parts",
    [
        (HEAD,),
        (CONTINUE, HEAD),
        (CONTINUE + HEAD,),
        (CONTINUE[:30], CONTINUE[30:] + HINTS + HEAD[:20], HEAD[20:]),
        tuple(bytes([one]) for one in CONTINUE + HEAD),
    ],
)
def test_heads_before_the_last_are_passed_over(parts: tuple[bytes, ...]) -> None:
    expected = (200, [(b"content-length", b"2"), (b"x-own", b"a")], b"ok")
    assert answered(*parts) == expected


def test_a_peer_that_breaks_off_after_an_early_head_is_gone() -> None:
    with pytest.raises(PeerGone):
        answered(CONTINUE)


def test_a_target_is_sent_exactly_as_it_is() -> None:
    """A peer is trusted with more paths than a client: none may come of resolving dots."""
    target = b"/v1/responses/resp_1/../../../internal/release?session=%73ess//1"
    lines: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
        writer.write(HEAD)
        writer.close()

    async def ask(address: str) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        async with Peers().fetch(address, "POST", target, HOST, b"") as response:
            return response.status, response.headers, b""

    asyncio.run(_with_peer(talk, ask))
    assert lines == [b"POST " + target + b" HTTP/1.1"]
