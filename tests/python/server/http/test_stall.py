"""A stalled engine: clients are told in time, and the server recovers when the engine does."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sinkstream.observe.activities import Activities, Activity
from sinkstream.server.health import Health
from tests.python.server.http.running_server import (
    CHAT,
    COMPLETIONS,
    ENDLESS,
    HELLO,
    Running,
    read_all,
    running,
    unchunked,
)
from tests.python.server.http.stopped_engine import stopped_engine

ROOT = Path(__file__).parents[4]
WATCHDOG_S = 1.0
IN_TIME_S = 20.0  # without a watchdog they would wait forever


@pytest.fixture(scope="module", params=["none", "kept"])
def watched(
    request: pytest.FixtureRequest,
    tiny_folder: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Running]:
    """Give a server with a short watchdog, with and without a store."""
    kept = request.param == "kept"
    store = str(tmp_path_factory.mktemp("store")) if kept else "none"
    with running(tiny_folder("llama"), sequences=3, watchdog_s=WATCHDOG_S, store=store) as found:
        yield found


def test_clients_of_a_stalled_engine_are_told_in_time(watched: Running) -> None:
    """A stream, a whole reply, one that begins, and one that waits for its turn."""
    whole = {"prompt": "the", "max_tokens": 60_000, "ignore_eos": True, "seed": 1}
    chat = {"messages": HELLO, "max_tokens": 60_000, "ignore_eos": True, "seed": 2}
    streamed = watched.begin(COMPLETIONS, ENDLESS)
    begun = b""
    while b"data: " not in begun:
        begun += streamed.recv(1 << 16)
    with stopped_engine(watched.model):
        stopped_at = time.monotonic()
        asked = [watched.begin(COMPLETIONS, whole), watched.begin(CHAT, chat)]
        asked += [watched.begin(CHAT, {**chat, "stream": True}) for _ in range(4)]
        body, is_complete = unchunked(begun + read_all(streamed))
        assert not is_complete
        *events, last, end = body.split(b"\n\n")
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "stalled"
        assert len(events) > 0
        assert end == b""
        for connection in asked:
            head, _, body = read_all(connection).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 "), head
            assert json.loads(body)["error"]["code"] == "stalled"
        assert time.monotonic() - stopped_at < IN_TIME_S
        health = watched.ask("GET", "/health")
        assert (health.status, health.error["code"]) == (503, "stalled")
        assert watched.post(CHAT, chat).status == 503
        assert watched.metric("sinkstream_engine_stalled") == 1
    watched.wait_until(lambda: watched.ask("GET", "/health").status == 200, "healthy again")
    watched.wait_until(lambda: watched.metric("sinkstream_open_replies") == 0, "all have ended")
    answer = watched.post(COMPLETIONS, {**whole, "max_tokens": 5})
    assert answer.json["usage"]["completion_tokens"] == 5


SERVE = """
import logging, sys, threading
import sinkstream
from sinkstream.server.config import ServerConfig
from sinkstream.server.serve import serve
from tests.python.server.http.stopped_engine import stopped_engine

def stop(model):
    sys.stdin.readline()
    with stopped_engine(model):
        threading.Event().wait()

def on_ready(address, model):
    threading.Thread(target=stop, args=[model], daemon=True).start()
    print(address, flush=True)

logging.basicConfig()
config = ServerConfig(port=0, store=sys.argv[2], watchdog_s=1.0, drain_s=600.0)
serve(config, lambda: sinkstream.load(sys.argv[1], window=60, threads=1), on_ready)
"""


def test_a_stalled_server_ends_on_sigterm(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """Its engine never recovers. What was committed is there afterwards."""
    model, store = tiny_folder("llama"), tmp_path / "store"
    command = [sys.executable, "-c", SERVE, str(model), str(store)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as child:
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            port = int(child.stdout.readline().rpartition(b":")[2])
            server = Running(port, None)  # type: ignore[arg-type]
            body = {"messages": HELLO, "max_tokens": 3, "seed": 1, "prompt_cache_key": "a"}
            kept = server.post(CHAT, body)
            assert kept.status == 200
            child.stdin.write(b"stop\n")
            child.stdin.flush()
            server.wait_until(lambda: server.ask("GET", "/health").status == 503, "stalled")
            child.send_signal(signal.SIGTERM)
            assert child.wait(IN_TIME_S) == 1
            assert child.stderr is not None
            assert b"the engine has not completed a step" in child.stderr.read()
        finally:
            child.kill()
    with running(model, store=str(store)) as server:
        (session,) = server.ask("GET", "/v1/sessions").json["data"]
        assert session["id"] == kept.json["usage"]["sinkstream"]["session"]


class FakeEngine:
    """Counters that a test sets."""

    def __init__(self) -> None:
        self.counters = {"steps": 0, "running": 0, "parked": 0, "waiting": 0}

    def stats(self) -> dict[str, Any]:
        return self.counters


@pytest.mark.parametrize(
    ("counters", "activity", "stalls"),
    [
        ({}, None, False),
        ({"running": 2, "parked": 2}, None, False),
        ({"running": 2, "parked": 1}, None, True),
        ({"waiting": 1}, None, True),
        ({}, "engine", True),
        ({}, "encoding", False),
        ({}, "store", False),
    ],
)
def test_an_engine_with_work_and_no_step_has_stalled(
    counters: dict[str, int], activity: Activity | None, stalls: bool
) -> None:
    now, engine = 0.0, FakeEngine()
    activities = Activities(lambda: now)
    health = Health(10.0, lambda: now, activities)
    health.watch(engine)
    engine.counters.update(counters)
    with ExitStack() as doing:
        if activity is not None:  # what a call that begins a reply does now
            doing.enter_context(activities.during("engine"))
            doing.enter_context(activities.during(activity))
        health.check()
        now = 9.9
        health.check()
        assert not health.is_stalled
        now = 10.1
        health.check()
        assert health.is_stalled == stalls
        assert health.has_slow_store == (activity == "store")
    assert not health.has_slow_store
    engine.counters["steps"] += 1
    health.check()
    assert not health.is_stalled
