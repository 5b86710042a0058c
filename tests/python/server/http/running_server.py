"""A server in a thread of the test's process, and plain clients for it."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sinkstream

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "the sea"}]
ENDLESS = {"prompt": "the", "max_tokens": 1 << 40, "ignore_eos": True, "stream": True, "seed": 1}


@dataclass
class Answered:
    """A whole response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """Return the error, and check that its shape is the one of all errors."""
        assert set(self.json) == {"error"}
        assert set(self.json["error"]) == {"message", "type", "param", "code"}
        assert self.headers["content-type"] == "application/json"
        error: dict[str, Any] = self.json["error"]
        return error


@dataclass
class Running:
    """A server that answers."""

    port: int
    model: sinkstream.Model

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answered:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"} if data is not None else {}
        try:
            connection.request(method, path, data, {**kind, **(headers or {})})
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Answered(response.status, names, response.read())
        finally:
            connection.close()

    def post(self, path: str, body: Any, **headers: str) -> Answered:
        return self.ask("POST", path, body, headers)

    def open(self, head: str, body: bytes = b"", buffer_bytes: int = 0) -> socket.socket:
        """Send a request as it is, and return the socket; bound what the kernel receives."""
        connection = socket.socket()
        connection.settimeout(60)
        if buffer_bytes:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        connection.connect(("127.0.0.1", self.port))
        connection.sendall(head.encode("latin-1") + b"\r\n" + body)
        return connection

    def raw(self, head: str, body: bytes = b"") -> tuple[int, bytes]:
        """Return the status and everything that comes until the server closes."""
        with self.open(head + "Connection: close\r\n", body) as connection:
            answer = read_all(connection)
        return int(answer.split(b" ")[1]), answer

    def begin(self, path: str, body: Any, buffer_bytes: int = 0) -> socket.socket:
        """Send a request with a body, and return the socket; see `open`."""
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        return self.open(f"{head}Content-Length: {len(data)}\r\n", data, buffer_bytes)

    def metric(self, name: str) -> float:
        text = self.ask("GET", "/metrics").body.decode()
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        assert found, text
        return float(found[1])

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, f"{what}: {self.model.stats()}"
            time.sleep(0.005)


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def unchunked(answer: bytes) -> tuple[bytes, bool]:
    """Return the body of a chunked response, and whether it is complete."""
    _, _, rest = answer.partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        count = int(size, 16)
        if count == 0:
            return body, True
        body, rest = body + rest[:count], rest[count + 2 :]
    return body, False


def events_of(body: bytes) -> list[Any]:
    """Return the data of a stream's events; comments are left out, and the end must be there."""
    events = [event for event in body.decode().split("\n\n") if event.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]


@contextmanager
def running(
    folder: Path,
    *,
    sequences: int = 4,
    window: int = 60,
    speculation: int | None = 0,
    stop: threading.Event | None = None,
    **settings: Any,
) -> Iterator[Running]:
    """Serve a tiny model on a free port; until the block ends, or `stop` is set before.

    Without drafts: the long replies of a tiny model repeat themselves, and would end early.
    """
    from sinkstream.cluster.serving import Sharing
    from sinkstream.server.config import ServerConfig
    from sinkstream.server.serve import serve

    stop, ready = stop or threading.Event(), threading.Event()
    found: list[Running] = []
    failed: list[BaseException] = []

    def on_ready(address: str, model: sinkstream.Model) -> None:
        found.append(Running(int(address.rpartition(":")[2]), model))
        ready.set()

    def run() -> None:
        defaults = {"port": 0, "model_name": "tiny", "drain_s": 0.2, "store": "none"}
        config = replace(ServerConfig(), **{**defaults, **settings})
        try:
            serve(
                config,
                lambda: sinkstream.load(
                    folder,
                    window=window,
                    max_sequences=sequences,
                    speculation=speculation,
                    threads=1,
                ),
                on_ready,
                stop=stop,
                sharing=Sharing() if config.is_shared else None,
            )
        except BaseException as error:
            failed.append(error)
        ready.set()

    thread = threading.Thread(target=run, name="test-server")
    thread.start()
    try:
        assert ready.wait(120)
        assert not failed, failed
        yield found[0]
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()
    assert not failed, failed
