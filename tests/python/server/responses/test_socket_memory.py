"""`WS /v1/responses`: what messages and waiting requests hold, and where they are parsed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from websockets.sync.client import ClientConnection, connect

from sinkstream.server import socket_limits
from sinkstream.server.errors import invalid
from sinkstream.server.responses import socket_lane as lane_module
from sinkstream.server.responses import socket_route
from sinkstream.server.responses.response_bodies import ResponseRequest
from tests.python.server.http.running_server import Running, running
from tests.python.server.responses.checking import ASKED, ENDLESS, RESPONSES

KIB = 1 << 10
LIMIT = 1 << 20  # of a message
LONG = "a" * (900 * KIB)


@pytest.fixture(scope="module")
def small(tiny_folder: Callable[[str], Path]) -> Iterator[Running]:
    """A server without keys, whose messages are short, with one reply at a time.

    So only one reply is written for a client that does not read it, and no test is slowed by it.
    The window is long, so that the longest reply takes longer than what a test does meanwhile.
    """
    with running(tiny_folder("llama"), window=2000, sequences=1, max_body_bytes=LIMIT) as found:
        yield found


def opened(server: Running) -> ClientConnection:
    """Connect with a small buffer: endless replies that a test does not read soon stand still.

    Such a client does not read the answer to its own goodbye either, and need not wait for it.
    """
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", server.port))
    address = f"ws://127.0.0.1:{server.port}{RESPONSES}"
    return connect(address, sock=connection, close_timeout=0.1)


def send(client: ClientConnection, **more: Any) -> int:
    """Send a request; return its size."""
    data = json.dumps({"type": "response.create", "input": "the sea", **ASKED, **more})
    client.send(data)
    return len(data)


def until(client: ClientConnection, *kinds: str) -> dict[str, Any]:
    event: dict[str, Any] = {"type": ""}
    while event["type"] not in kinds:
        event = json.loads(client.recv(timeout=60))
    return event


def held(server: Running) -> float:
    return server.metric("sinkstream_request_body_bytes")


@pytest.mark.parametrize(
    ("more", "end"),
    [({}, "response.incomplete"), ({"temperature": -1, "stream_id": "a"}, "error")],
)
def test_a_long_message_is_parsed_once_and_not_on_the_event_loop(
    small: Running, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], end: str
) -> None:
    loads, threads = orjson.loads, []

    def spy(given: Any) -> Any:
        if len(given) > len(LONG):
            threads.append(threading.current_thread().name)
        return loads(given)

    monkeypatch.setattr(orjson, "loads", spy)
    with opened(small) as found:
        send(found, padding=LONG, **more)
        event = until(found, "response.incomplete", "error")
    assert (event["type"], event.get("stream_id")) == (end, more.get("stream_id"))
    assert threads == ["sinkstream-server"]


def test_requests_that_wait_are_counted_until_they_begin(small: Running) -> None:
    with opened(small) as found:
        send(found, **ENDLESS)
        until(found, "response.created")
        small.wait_until(lambda: held(small) == 0, "a request that has begun counts")
        send(found, padding=LONG)
        small.wait_until(lambda: held(small) > len(LONG), "a request that waits does not count")
        found.send(json.dumps({"type": "response.cancel"}))
        until(found, "response.created")
        small.wait_until(lambda: held(small) == 0, "a request that has begun counts")
        send(found, **ENDLESS)
        until(found, "response.created")
        send(found, padding=LONG)
        small.wait_until(lambda: held(small) > len(LONG), "a request that waits does not count")
    small.wait_until(lambda: held(small) == 0, "a closed socket counts")


def test_a_socket_of_another_protocol_is_served(
    small: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's, for example, which does not say what it holds of messages."""
    monkeypatch.setattr(socket_limits, "MESSAGES", "of another kind")
    with opened(small) as found:
        send(found, **ENDLESS)
        until(found, "response.created")
        send(found, padding=LONG)
        small.wait_until(lambda: held(small) > len(LONG), "a request that waits does not count")
        found.send(json.dumps({"type": "response.cancel"}))
        until(found, "response.created")
    small.wait_until(lambda: held(small) == 0, "a closed socket counts")


def test_requests_that_wait_on_all_sockets_have_a_largest_size(small: Running) -> None:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(opened(small)) for _ in range(5)]
        send(sockets[0], **ENDLESS)
        until(sockets[0], "response.created")
        waiting = sum(send(found, **ENDLESS) for found in sockets[1:])
        for found in sockets[:-1]:  # exactly as many bytes: a message that is not parsed has more
            waiting += send(found, padding=LONG)
            small.wait_until(lambda size=waiting: held(small) == size, "it waits")  # type: ignore[misc]
        send(sockets[-1], padding=LONG)
        event = until(sockets[-1], "error")
        assert (event["status"], event["error"]["code"]) == (429, "capacity")
        assert "the requests that wait" in event["error"]["message"]
        body = {"prompt": "the", "padding": LONG}
        assert small.post("/v1/tokenize", body).status == 200  # bodies are apart
    small.wait_until(lambda: held(small) == 0, "a closed socket counts")


@pytest.mark.parametrize("more", [{"temperature": -1}, {"background": True}])
def test_a_refusal_that_the_client_does_not_read_holds_no_message(
    small: Running, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    is_sending = threading.Event()

    async def wait(*_: Any) -> None:
        is_sending.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(socket_route._Socket, "_send", wait)
    with opened(small) as found:
        send(found, padding=LONG, **more)
        assert is_sending.wait(30)
        assert held(small) == 0


def test_a_client_that_leaves_before_its_socket_is_accepted_is_no_internal_error(
    small: Running, caplog: pytest.LogCaptureFixture
) -> None:
    head = (
        f"GET {RESPONSES} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        "Sec-WebSocket-Version: 13\r\n"
    )
    with caplog.at_level("INFO", logger="sinkstream.server"):
        for _ in range(40):
            small.open(head).close()
        small.wait_until(lambda: caplog.text.count(" SOCKET ") >= 40, "a socket is open")
    assert "internal error" not in caplog.text
    assert "client_left" in caplog.text


def test_a_request_that_is_refused_when_it_begins_is_not_held(
    small: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even by the error, while its client does not read."""
    is_sending, requests = threading.Event(), list[weakref.ref[ResponseRequest]]()

    async def wait(*_: Any) -> None:
        is_sending.set()
        await asyncio.Event().wait()

    async def refuse(_: Any, body: ResponseRequest, *__: Any, **___: Any) -> None:
        requests.append(weakref.ref(body))
        raise invalid("body: no.")

    monkeypatch.setattr(socket_route._Socket, "_send", wait)
    monkeypatch.setattr(lane_module, "create", refuse)
    with opened(small) as found:
        send(found)
        assert is_sending.wait(30)
        assert requests
        small.wait_until(lambda: requests[0]() is None, "the request is held")
