"""`examples/proxy` with two servers: nothing is buffered, and sessions stay together."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from tests.python.server.http.running_server import (
    CHAT,
    COMPLETIONS,
    ENDLESS,
    HELLO,
    Running,
    read_all,
    running,
)

ROOT = Path(__file__).parents[4]
EXAMPLES = ROOT / "examples" / "proxy"
KEEPALIVE_S = 0.3
TALKS = 12  # enough for each of two servers to have some

Runs = Callable[[str, Path], list[str]]
"""Returns the command that runs a proxy with a configuration, in a folder."""


@dataclass
class Proxied:
    """A proxy, and the servers that it forwards to."""

    proxy: Running
    servers: list[Running]

    def requests(self) -> list[int]:
        return [server.model.stats()["requests"] for server in self.servers]


def _program(name: str) -> str:
    """Return where a proxy is: a package of the system, or one of this Python."""
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}:/usr/sbin"
    program = shutil.which(name, path=path)
    if program is None:
        pytest.skip(f"{name} is not installed")
    return program


def nginx(config: str, folder: Path) -> list[str]:
    program = _program("nginx")
    # Its temporary files are where this user may write.
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    own = "".join(f"  {kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    config = config.replace("http {\n", f"http {{\n  access_log off;\n{own}", 1)
    (folder / "nginx.conf").write_text(config)
    always = f"daemon off; pid {folder}/pid; error_log stderr error;"
    if os.getuid() == 0:
        always += " user root;"
    return [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", always]


def envoy(config: str, folder: Path) -> list[str]:
    program = _program("envoy")
    (folder / "envoy.yaml").write_text(config)
    options = ["--disable-hot-restart", "--concurrency", "1", "--log-level", "error"]
    return [program, "-c", str(folder / "envoy.yaml"), *options]


PROXIES: dict[str, tuple[str, Runs]] = {
    "nginx": ("nginx.conf", nginx),
    "envoy": ("envoy.yaml", envoy),
}


@pytest.fixture(scope="module", params=list(PROXIES))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def proxied(
    kind: str, tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxied]:
    """Give a proxy with two servers."""
    folder = tiny_folder("llama")
    with (
        running(folder, sequences=2, keepalive_s=KEEPALIVE_S) as first,
        running(folder, sequences=2, keepalive_s=KEEPALIVE_S) as second,
        proxy_of(kind, tmp_path_factory.mktemp(kind), first.port, second.port) as port,
    ):
        yield Proxied(Running(port, None), [first, second])  # type: ignore[arg-type]


@contextmanager
def proxy_of(kind: str, folder: Path, *upstreams: int) -> Iterator[int]:
    """Run an example with free ports."""
    name, command_of = PROXIES[kind]
    ports = dict(zip(("8000", "8001", "8002"), (free_port(), *upstreams), strict=True))
    config = re.sub(
        r"(127\.0\.0\.1(?::|, port_value: ))(\d+)",
        lambda at: f"{at[1]}{ports[at[2]]}",
        (EXAMPLES / name).read_text(),
    )
    with subprocess.Popen(command_of(config, folder)) as child:
        try:
            wait_for(ports["8000"])
            yield ports["8000"]
        finally:
            child.terminate()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 30
    with socket.socket() as probe:
        while probe.connect_ex(("127.0.0.1", port)) != 0:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_tokens_and_comments_pass_at_once(proxied: Proxied) -> None:
    """A few bytes arrive while the response stays open without sending more."""
    session = {"X-Session-Id": "one"}
    with begin(proxied, ENDLESS, session) as running_one, begin(proxied, ENDLESS, session):
        answer = b""
        while b"data: " not in answer:
            answer += running_one.recv(1 << 16)
        assert b"text/event-stream" in answer
        with begin(proxied, ENDLESS, session) as queued:  # both sequences are taken
            answer = b""
            while answer.count(b": queued\n\n") < 2:
                answer += queued.recv(1 << 16)
            assert b"data: " not in answer


def begin(proxied: Proxied, body: object, headers: dict[str, str]) -> socket.socket:
    data = json.dumps(body).encode()
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = (
        f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"{lines}Content-Length: {len(data)}\r\n"
    )
    return proxied.proxy.open(head, data)


def test_who_leaves_is_cancelled(proxied: Proxied) -> None:
    def at_work() -> int:
        return sum(server.model.stats()["running"] for server in proxied.servers)

    first = proxied.servers[0]
    first.wait_until(lambda: at_work() == 0, "idle")
    with begin(proxied, ENDLESS, {}) as connection:
        while b"data: " not in connection.recv(1 << 16):
            pass
        assert at_work() == 1
    first.wait_until(lambda: at_work() == 0, "cancelled")


def test_a_session_stays_on_its_server(proxied: Proxied) -> None:
    homes = set()
    for number in range(12):
        before = proxied.requests()
        for _ in range(4):
            answer = proxied.proxy.post(
                CHAT, {"messages": HELLO, "max_tokens": 1, "seed": 1},
                **{"X-Session-Id": f"session {number}"},
            )  # fmt: skip
            assert answer.status == 200
        grown = [now - then for now, then in zip(proxied.requests(), before, strict=True)]
        assert sorted(grown) == [0, 4]
        homes.add(grown.index(4))
    assert homes == {0, 1}


def test_errors_and_sockets_pass(proxied: Proxied) -> None:
    answer = proxied.proxy.post(CHAT, {"messages": []})
    assert (answer.status, answer.error["param"]) == (400, "messages")
    head = (
        "GET /v1/none HTTP/1.1\r\nHost: localhost\r\nOrigin: https://other.example\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    )
    with proxied.proxy.open(head) as connection:  # of a GET, the origin is not checked
        answer = b""
        while b"_not_allowed" not in answer:
            part = connection.recv(4096)
            assert part, answer
            answer += part
    assert answer.startswith(b"HTTP/1.1 403 ")


def test_a_server_that_is_down_is_replaced(
    kind: str, tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    with (
        running(tiny_folder("llama")) as server,
        proxy_of(kind, tmp_path, server.port, free_port()) as port,
    ):
        proxy = Running(port, None)  # type: ignore[arg-type]
        for number in range(8):
            body = {"prompt": "the", "max_tokens": 1, "seed": 1}
            answer = proxy.post(COMPLETIONS, body, **{"X-Session-Id": f"session {number}"})
            assert answer.status == 200
            with proxy.open("GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n") as one:
                assert b" 403 " in read_all(one)  # the servers still see the client's Host


def test_a_conversation_goes_on_when_its_server_is_gone(
    kind: str, tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """Two servers with one store; no request tells the client which of them has answered."""
    folder = tiny_folder("llama")
    store = {"store": str(tmp_path / "store"), "peer_secret": "a secret of sixteen or more"}
    talks: dict[str, list[dict[str, str]]] = {
        f"session {number}": [*HELLO] for number in range(TALKS)
    }
    sessions: dict[str, set[str]] = {name: set() for name in talks}
    states = []

    def turn(proxy: Running) -> None:
        for name, talk in talks.items():
            body = {"messages": talk, "max_tokens": 20, "seed": 1, "ignore_eos": True}
            answer = proxy.post(CHAT, body, **{"X-Session-Id": name})
            assert answer.status == 200
            own = answer.json["usage"]["sinkstream"]
            sessions[name].add(own["session"])
            states.append(own["state"])
            talk += [answer.json["choices"][0]["message"], {"role": "user", "content": "and then?"}]

    with running(folder, sequences=TALKS, replica="two", **store) as second:
        with (
            running(folder, sequences=TALKS, replica="one", **store) as first,
            proxy_of(kind, tmp_path, first.port, second.port) as port,
        ):
            turn(Running(port, None))  # type: ignore[arg-type]
            turn(Running(port, None))  # type: ignore[arg-type]
            secret = {"X-Sinkstream-Peer": store["peer_secret"]}
            proxy = Running(port, None)  # type: ignore[arg-type]
            assert first.post("/internal/release?session=none", {}, **secret).status in (200, 409)
            assert proxy.post("/internal/release?session=none", {}, **secret).status == 404
            shares = [server.model.stats()["requests"] for server in (first, second)]
        assert states == ["new"] * TALKS + ["resident"] * TALKS
        assert min(shares) > 0
        with proxy_of(kind, tmp_path, free_port(), second.port) as port:
            turn(Running(port, None))  # type: ignore[arg-type]
    assert all(len(seen) == 1 for seen in sessions.values())
    assert sorted(set(states[2 * TALKS :])) == ["loaded", "resident"]
    assert states[2 * TALKS :].count("loaded") == shares[0] // 2
