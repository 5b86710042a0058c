"""Requests leave no reference cycles: what they held is freed at once, not by a collection.

asyncio leaves one for each connection: a closed transport refers to its own methods. It holds
nothing of a request, and is left out here.
"""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from tests.python.server.http.running_server import CHAT, COMPLETIONS, HELLO, Running, running
from tests.python.server.socket_echo import frame

REPEATS = 8
OPTIONS: dict[str, Any] = {"max_tokens": 3, "seed": 1, "ignore_eos": True}
ENDLESS: dict[str, Any] = {**OPTIONS, "max_tokens": 1 << 30, "stream": True}
RESPONSES = "/v1/responses"
ASKED: dict[str, Any] = {"input": "the sea", "max_output_tokens": 3, "seed": 1, "ignore_eos": True}

Ask = Callable[[Running], object]


@pytest.fixture(scope="module", autouse=True)
def alone() -> None:
    """Look at asyncio's own cycle first, while no server in this process closes a connection."""
    left_by_asyncio()


@pytest.fixture(scope="module")
def server(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    store = str(tmp_path_factory.mktemp("store"))
    with running(tiny_folder("llama"), store=store, sequences=3) as found:
        yield found


def chat(server: Running, **more: Any) -> Any:
    return server.post(CHAT, {"messages": HELLO, **OPTIONS, **more})


def session_of(server: Running) -> str:
    found: str = chat(server, cache_salt="deleted").json["usage"]["sinkstream"]["session"]
    return found


def leave_in_the_middle(server: Running, path: str, body: dict[str, Any]) -> None:
    with server.begin(path, body) as connection:
        read_until(connection, b"data: {")


def read_until(connection: socket.socket, end: bytes) -> None:
    answer = b""
    while end not in answer:
        part = connection.recv(1 << 16)
        assert part, answer
        answer += part


def leave_at_once(server: Running) -> None:
    server.begin(CHAT, {"messages": HELLO, **OPTIONS, "max_tokens": 4000}).close()


def two_over_one_connection(server: Running) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    for _ in range(2):
        body, kind = json.dumps({"messages": HELLO, **OPTIONS}), "application/json"
        connection.request("POST", CHAT, body, {"Content-Type": kind})
        connection.getresponse().read()
    connection.close()


def respond_and_delete(server: Running) -> None:
    name = server.post(RESPONSES, ASKED).json["id"]
    server.ask("GET", f"{RESPONSES}/{name}?stream=true")
    server.ask("GET", f"{RESPONSES}/{name}/input_items")
    server.ask("DELETE", f"{RESPONSES}/{name}")


def respond_and_cancel(server: Running) -> None:
    asked = {**ASKED, "background": True, "max_output_tokens": 60_000}
    name = server.post(RESPONSES, asked).json["id"]
    server.post(f"{RESPONSES}/{name}/cancel", {})
    server.ask("DELETE", f"{RESPONSES}/{name}")


def over_a_socket(server: Running, frames: Sequence[bytes], until: bytes) -> None:
    """Open a WebSocket, send frames, and leave after some of what comes back."""
    head = (
        f"GET {RESPONSES} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        "Sec-WebSocket-Version: 13\r\n"
    )
    with server.open(head) as connection:
        read_until(connection, b"\r\n\r\n")
        connection.sendall(b"".join(frames))
        read_until(connection, until)


def asked_over_a_socket(**more: Any) -> bytes:
    return frame(0x81, json.dumps({"type": "response.create", **ASKED, **more}).encode())


SOCKETS: dict[str, Ask] = {
    "open a socket": lambda server: over_a_socket(server, [], b""),
    "respond over a socket": lambda server: over_a_socket(
        server, [asked_over_a_socket()] * 2, b"response.incomplete"
    ),
    "leave a response over a socket": lambda server: over_a_socket(
        server, [asked_over_a_socket(max_output_tokens=60_000)], b".delta"
    ),
    "refuse over a socket": lambda server: over_a_socket(
        server, [asked_over_a_socket(input=1)], b'"error"'
    ),
    "break a socket": lambda server: over_a_socket(server, [b"\xff" * 4], b"\x88"),
}
KINDS: dict[str, Ask] = {
    **SOCKETS,
    "talk": chat,
    "talk without keeping": lambda server: chat(server, store=False),
    "talk twice over one connection": two_over_one_connection,
    "stream": lambda server: chat(server, stream=True),
    "stream two with log-probabilities": lambda server: chat(
        server, stream=True, n=2, logprobs=True
    ),
    "leave a chat in the middle": lambda server: leave_in_the_middle(
        server, CHAT, {"messages": HELLO, **ENDLESS}
    ),
    "leave at once": leave_at_once,
    "complete two": lambda server: server.post(COMPLETIONS, {"prompt": "a", **OPTIONS, "n": 2}),
    "leave two completions in the middle": lambda server: leave_in_the_middle(
        server, COMPLETIONS, {"prompt": "a", **ENDLESS, "n": 2}
    ),
    "complete two that are refused": lambda server: server.post(
        COMPLETIONS, {"prompt": ["a", "b"], **OPTIONS, "logit_bias": {"293": 1}}
    ),
    "apply the template": lambda server: server.post("/apply-template", {"messages": HELLO}),
    "tokenize": lambda server: server.post("/tokenize", {"content": "a b c"}),
    "metrics": lambda server: server.ask("GET", "/metrics"),
    "delete": lambda server: server.ask("DELETE", f"/v1/sessions/{session_of(server)}"),
    "delete nothing": lambda server: server.ask("DELETE", "/v1/sessions/sess_0"),
    "save": lambda server: server.ask("GET", f"/v1/sessions/{session_of(server)}/file"),
    "list": lambda server: server.ask("GET", "/v1/sessions"),
    "no JSON": lambda server: server.ask("POST", CHAT, b"{"),
    "no type": lambda server: server.ask("POST", CHAT, b"{}", {"Content-Type": "text/plain"}),
    "a wrong type": lambda server: server.post(CHAT, {"messages": 1}),
    "a value out of range": lambda server: chat(server, temperature=-1.0),
    "a value out of range for a completion": lambda server: server.post(
        COMPLETIONS, {"prompt": "a", "temperature": -1.0}
    ),
    "a message that the template refuses": lambda server: server.post(
        CHAT, {"messages": [{"role": "assistant", "content": "a"}]}
    ),
    "an unknown path": lambda server: server.ask("GET", "/v1/nothing"),
    "no HTTP": lambda server: server.open("nonsense\r\n").close(),
    "respond": respond_and_delete,
    "respond without keeping": lambda server: server.post(RESPONSES, {**ASKED, "store": False}),
    "leave a response": lambda server: leave_in_the_middle(
        server, RESPONSES, {**ASKED, "max_output_tokens": 60_000, "stream": True}
    ),
    "cancel a response": respond_and_cancel,
    "follow nothing": lambda server: server.post(
        RESPONSES, {**ASKED, "previous_response_id": "resp_0"}
    ),
}


def wait_until_quiet(server: Running) -> None:
    server.wait_until(lambda: server.metric("sinkstream_open_replies") == 0, "replies end")
    server.wait_until(lambda: server.metric("sinkstream_open_sockets") == 0, "sockets are closed")
    server.wait_until(lambda: server.metric("sinkstream_open_connections") <= 1, "clients left")
    server.wait_until(lambda: server.metric("sinkstream_http_requests") <= 1, "requests end")


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_leaves_no_cycles(server: Running, kind: str) -> None:
    assert cycles_of(server, KINDS[kind]) == Counter()


def test_a_chat_of_a_server_without_a_store_leaves_no_cycles(
    tiny_folder: Callable[[str], Path],
) -> None:
    with running(tiny_folder("llama"), store="none") as server:
        assert cycles_of(server, chat) == Counter()


def cycles_of(server: Running, ask: Ask) -> Counter[str]:
    """Return the types of the objects that are left after requests until a collection."""
    for _ in range(2):  # everything is used once
        ask(server)
    wait_until_quiet(server)
    with collecting() as left:
        for _ in range(REPEATS):
            ask(server)
        wait_until_quiet(server)
    connections = left["_SelectorSocketTransport"]
    for name, count in left_by_asyncio().items():
        left[name] -= connections * count
    return Counter({name: count for name, count in left.items() if count})


@contextmanager
def collecting() -> Iterator[Counter[str]]:
    """Give what is known when the block has ended: the types of the objects that it leaves."""
    left: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield left
        gc.collect()
        left.update(type(one).__qualname__ for one in gc.garbage if not is_address(one))
        left.update(repr(one) for one in gc.garbage if isinstance(one, BaseException))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def is_address(one: object) -> bool:
    """Return whether this is such as ("127.0.0.1", 80): it refers to nothing that could be left."""
    return isinstance(one, tuple) and all(isinstance(part, str | int) for part in one)


@cache
def left_by_asyncio() -> Counter[str]:
    """Return what one connection leaves whose protocol does nothing."""
    lost: list[asyncio.Event] = []

    class Silent(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            lost.pop().set()

    async def connect(address: tuple[str, int]) -> None:
        lost.append(closed := asyncio.Event())
        socket.create_connection(address, 60).close()
        await asyncio.wait_for(closed.wait(), 60)
        await asyncio.sleep(0)

    async def run() -> Counter[str]:
        server = await asyncio.get_running_loop().create_server(Silent, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        await connect(address)
        with collecting() as left:
            await connect(address)
        server.close()
        return left

    left = asyncio.run(run())
    assert left["_SelectorSocketTransport"] == 1
    return left
