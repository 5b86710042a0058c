"""A server as a process: killed, restarted, drained; and before its model is loaded."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream.conversations.errors import StoreError
from sinkstream.server.config import ServerConfig
from tests.python.server.http.running_server import (
    CHAT,
    HELLO,
    Running,
    events_of,
    read_all,
    running,
)
from tests.python.server.http.running_server import unchunked as whole_body

ROOT = Path(__file__).parents[4]
OPTIONS: dict[str, Any] = {"max_tokens": 8, "ignore_eos": True, "temperature": 1.0}
ENDLESS: dict[str, Any] = {**OPTIONS, "max_tokens": 1 << 40, "stream": True, "seed": 9}


@contextmanager
def process(model: Path, store: Path) -> Iterator[tuple[Running, subprocess.Popen[bytes]]]:
    """Run `sinkstream serve`; kill it if the test does not end it."""
    command = [sys.executable, "-m", "sinkstream", "serve", str(model), "--port", "0"]
    options = ["--window", "60", "--threads", "1", "--max-sequences", "4", "--drain-s", "600"]
    with subprocess.Popen(
        [*command, *options, "--store", str(store)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "SINKSTREAM_API_KEY"},
    ) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline().decode()
            assert line.startswith("Listening on http://127.0.0.1:"), line
            yield Running(int(line.rpartition(":")[2]), None), server  # type: ignore[arg-type]
        finally:
            server.kill()


def say(server: Running, history: list[Any], turn: int) -> dict[str, Any]:
    """Send a history with one more message; note the reply in it, and return the usage."""
    history.append({"role": "user", "content": f"say {turn}"})
    answer = server.post(CHAT, {"messages": history, "seed": turn, **OPTIONS})
    assert answer.status == 200, answer.body
    history.append(answer.json["choices"][0]["message"])
    usage: dict[str, Any] = answer.json["usage"]
    return usage


def begin_endless(server: Running, history: list[Any]) -> socket.socket:
    """Send a history with one more message, and read the beginning of an endless reply."""
    messages = [*history, {"role": "user", "content": "tell me all"}]
    connection = server.begin(CHAT, {"messages": messages, **ENDLESS})
    begun = b""
    while b'"content":"' not in begun.replace(b'"content":""', b""):
        begun += connection.recv(4096)
    return connection


def test_a_conversation_survives_a_kill(tiny_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """Killed in the middle of a reply; every later reply equals an undisturbed server's."""
    model, turns, at = tiny_folder("llama"), 24, 12
    undisturbed: list[Any] = []
    with running(model, store=str(tmp_path / "other")) as server:
        for turn in range(turns):
            say(server, undisturbed, turn)
    history: list[Any] = []
    with process(model, tmp_path / "store") as (server, child):
        for turn in range(at):
            say(server, history, turn)
        with begin_endless(server, history):
            child.send_signal(signal.SIGKILL)
            child.wait(60)
    with process(model, tmp_path / "store") as (server, _):
        usages = [say(server, history, turn) for turn in range(at, turns)]
    assert history == undisturbed
    states = [usage["sinkstream"]["state"] for usage in usages]
    assert states[0] in ("loaded", "replayed")
    assert states[1:] == ["resident"] * (turns - at - 1)
    read = [u["prompt_tokens"] - u["prompt_tokens_details"]["cached_tokens"] for u in usages]
    assert read[0] - usages[0]["sinkstream"]["replayed_tokens"] == read[1]


def test_sigterm_drains(tiny_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """Replies go on, requests are refused; a second signal ends, and commits, what still runs."""
    model, store = tiny_folder("llama"), tmp_path / "store"
    history: list[Any] = []
    with process(model, store) as (server, child):
        say(server, history, 0)
        limited = {"messages": [{"role": "user", "content": "a"}], **ENDLESS, "max_tokens": 500}
        with begin_endless(server, history) as endless, server.begin(CHAT, limited) as short:
            assert short.recv(12) == b"HTTP/1.1 200"
            child.send_signal(signal.SIGTERM)
            server.wait_until(lambda: server.ask("GET", "/health").status == 503, "draining")
            for method, path, body in (("GET", "/health", None), ("POST", CHAT, limited)):
                refused = server.ask(method, path, body)
                assert (refused.status, refused.error["code"]) == (503, "draining")
                assert refused.headers["x-should-retry"] == "true"
            answer = b"HTTP/1.1 200"
            while not answer.endswith(b"0\r\n\r\n"):
                answer += short.recv(1 << 16)
            body, is_whole = whole_body(answer)
            assert is_whole
            assert events_of(body)[-1]["sinkstream"]["finish_reason"] == "length"
            child.send_signal(signal.SIGTERM)
            rest = read_all(endless)
        assert b'"code":"draining"' in rest
        assert b"[DONE]" not in rest
        assert child.wait(60) == 0
    with running(model, store=str(store)) as server:
        usage = say(server, history, 1)
        assert usage["sinkstream"]["state"] in ("loaded", "replayed")
        # The reply that was cut is a branch of the same conversation. A single turn is not listed.
        assert len(server.ask("GET", "/v1/sessions").json["data"]) == 1


def accepts(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def test_requests_are_refused_while_the_model_loads(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sinkstream.server import serve as module

    addresses: list[str] = []
    listening, may_load, stop, ready = (threading.Event() for _ in range(4))
    address_of = module.address_of

    def noted(listener: socket.socket) -> str:
        addresses.append(address_of(listener))
        listening.set()
        return addresses[0]

    def load() -> sinkstream.Model:
        assert may_load.wait(120)
        return sinkstream.load(tiny_folder("llama"), window=60, threads=1)

    monkeypatch.setattr(module, "address_of", noted)
    config = ServerConfig(port=0, store="none")
    arguments = (config, load, lambda address, model: ready.set())
    thread = threading.Thread(target=module.serve, args=arguments, kwargs={"stop": stop})
    thread.start()
    try:
        assert listening.wait(60)
        server = Running(int(addresses[0].rpartition(":")[2]), None)  # type: ignore[arg-type]
        server.wait_until(lambda: accepts(server.port), "listening")
        chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
        for method, path, body in (
            ("GET", "/health", None), ("GET", "/v1/models", None), ("POST", CHAT, chat),
            ("GET", "/v1/sessions", None),
        ):  # fmt: skip
            answer = server.ask(method, path, body)
            assert (answer.status, answer.error["code"]) == (503, "loading"), path
            assert answer.headers["x-should-retry"] == "true"
        assert server.ask("GET", "/metrics").status == 200
        may_load.set()
        assert ready.wait(120)
        assert server.post(CHAT, chat).status == 200
    finally:
        may_load.set()
        stop.set()
        thread.join(60)
    assert not thread.is_alive()


def test_a_store_of_another_window_is_refused(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    from sinkstream.server.serve import serve

    with running(tiny_folder("llama"), store=str(tmp_path)) as server:
        say(server, [], 0)
    loaded: list[sinkstream.Model] = []

    def load() -> sinkstream.Model:
        loaded.append(sinkstream.load(tiny_folder("llama"), window=50, threads=1))
        return loaded[0]

    with pytest.raises(StoreError, match=r"^store: "):
        serve(ServerConfig(port=0, store=str(tmp_path)), load)
    assert "closed" in repr(loaded[0])


def test_the_default_store_is_the_models_own(
    tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    from sinkstream.server.store_choice import default_store

    found = set()
    for window in (50, 60, 60):
        with sinkstream.load(tiny_folder("llama"), window=window, threads=1) as model:
            found.add(default_store(model))
    assert len(found) == 2
    assert {folder.parent for folder in found} == {tmp_path / "sinkstream" / "conversations"}
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with sinkstream.load(tiny_folder("llama"), window=50, threads=1) as model:
        assert default_store(model).is_relative_to(tmp_path / "home" / ".local" / "state")
        monkeypatch.setenv("HOME", "")
        with pytest.raises(StoreError, match=r"^serve: `store` must be given"):
            default_store(model)


def test_a_client_that_does_not_read_does_not_hold_up_the_end(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinkstream.server.serve._CLOSE_S", 1)
    # `running` ends first, and joins the server's thread while the client is still connected.
    with ExitStack() as after, running(tiny_folder("llama")) as server:
        body = {"messages": HELLO, **ENDLESS}
        after.enter_context(server.begin(CHAT, body, buffer_bytes=4096))
        # The reply is parked once all buffers between the engine and the client are full.
        server.wait_until(lambda: server.model.stats()["parked"] == 1, "the client has stalled")
