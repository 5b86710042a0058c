"""What is passed on to an owner, whose part is played by a plain socket."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")


from sinkstream.cluster.owners import Replica
from sinkstream.cluster.peers.forwarding import Forwarding, _previous_in
from sinkstream.server.parsing import MOST_VALUES
from sinkstream.server.request_log import KEY, RequestLog, Scope

BODY = b'{"previous_response_id": "resp_1"}'
OF_THE_CLIENT = [
    (b"host", b"chat.example"),
    (b"authorization", b"Bearer a"),
    (b"content-type", b"application/json"),
    (b"content-length", b"34"),
    (b"connection", b"close, X-Hop"),
    (b"connection", b"x-Other"),
    (b"x-hop", b"1"),
    (b"x-other", b"2"),
    (b"expect", b"100-continue"),
    (b"upgrade", b"h2c"),
    (b"te", b"trailers"),
    (b"trailer", b"x-sum"),
    (b"proxy-connection", b"close"),
    (b"x-sinkstream-peer", b"forged"),
]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: x-hop\r\nx-hop: 1\r\nx-own: 3\r\n\r\n"


class Owned(Forwarding):
    """What it gets belongs to the peer."""

    peer = Replica("one", "")

    async def _owner(self, scope: Scope) -> Replica | None:
        return self.peer


class Talk:
    """One request that is passed on: what the peer has read, and what the client gets."""

    def __init__(self, head: bytes) -> None:
        self.head = head
        self.may_end = asyncio.Event()
        self.read: list[bytes] = []
        self.sent: list[Any] = []
        self.freed: list[int] = []
        self.body_here: bytes | bytearray | None = None
        self.log = RequestLog("r1", body=bytearray(BODY), on_dropped=self.freed.append)

    async def run(self) -> None:
        async with await asyncio.start_server(self._answer, "127.0.0.1", 0) as peer:
            service: Any = SimpleNamespace(config=SimpleNamespace(peer_secret="s" * 16))
            forwarding = Owned(self._here, service)
            port = peer.sockets[0].getsockname()[1]
            forwarding.peer = Replica("one", f"http://127.0.0.1:{port}")
            scope = {
                "method": "POST",
                "path": "/v1/responses",
                "query_string": b"",
                "headers": OF_THE_CLIENT,
                KEY: self.log,
            }
            await asyncio.wait_for(forwarding(scope, self._stay, self._send), 20)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.read.append(await reader.readuntil(b"\r\n\r\n"))
        self.read.append(await reader.readexactly(len(BODY)))
        writer.write(self.head)
        await self.may_end.wait()
        writer.write(b"ok")
        writer.close()

    async def _here(self, scope: Scope, receive: Any, send: Any) -> None:
        self.body_here = self.log.body

    async def _stay(self) -> Any:
        await asyncio.Event().wait()

    async def _send(self, message: Any) -> None:
        self.sent.append(message)
        self.log.status = 200
        self.log.is_complete = not message.get("more_body", True)


def test_what_is_of_a_connection_goes_no_further() -> None:
    async def check() -> None:
        talk = Talk(HEAD)
        talk.may_end.set()
        await talk.run()
        lines = talk.read[0].decode().lower().split("\r\n")
        assert sorted(lines[1:-2]) == [
            "authorization: bearer a",
            "connection: close",
            "content-length: 34",
            "content-type: application/json",
            "host: chat.example",
            "x-request-id: r1",
            f"x-sinkstream-peer: {'s' * 16}",
        ]
        assert talk.read[1] == BODY
        assert talk.sent[0]["headers"] == [(b"content-length", b"2"), (b"x-own", b"3")]

    asyncio.run(check())


def test_a_body_is_given_back_once_the_owner_answers() -> None:
    async def check() -> None:
        talk = Talk(HEAD)
        running = asyncio.create_task(talk.run())
        while not talk.sent:
            await asyncio.sleep(0.001)
        freed = list(talk.freed)
        talk.may_end.set()
        await running
        assert freed == [len(BODY)]
        assert b"".join(each.get("body", b"") for each in talk.sent) == b"ok"

    asyncio.run(check())


def test_a_body_is_kept_for_this_server_if_the_owner_cannot_answer() -> None:
    async def check() -> None:
        talk = Talk(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\n")
        talk.may_end.set()
        await talk.run()
        assert (talk.body_here, talk.sent, talk.freed) == (BODY, [], [])

    asyncio.run(check())


def test_a_body_with_too_many_values_is_not_parsed() -> None:
    """The route refuses it; its values would take sixty times the memory of their text."""
    begin, end = b'{"previous_response_id": "resp_1", "x": [', b"1]}"
    assert _previous_in(begin + b"1," * 1000 + end) == "resp_1"
    assert _previous_in(begin + b"1," * MOST_VALUES + end) is None
