"""examples/serve.py: streams, metrics and health over HTTP, and an orderly end."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def server(tiny_folder: Callable[[str], Path]) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, ROOT / "examples" / "serve.py", "--port", "0", "--window", "60"]
    with subprocess.Popen(
        [*command, "--streams", "2", "--model", tiny_folder("llama")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            found = re.fullmatch(r"listening on http://127\.0\.0\.1:(\d+)\n", said)
            assert found, said
            yield process, int(found[1])
        finally:
            process.kill()


def ask(port: int, method: str, path: str, body: object = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line]


def metric(port: int, name: str) -> float:
    _, text = ask(port, "GET", "/metrics")
    return float(re.search(rf"^{name} (\S+)$", text, re.MULTILINE)[1])  # type: ignore[index]


def test_it_serves_streams_metrics_and_health_and_ends_on_sigterm(
    server: tuple[subprocess.Popen[str], int],
) -> None:
    process, port = server
    assert ask(port, "GET", "/healthz") == (200, "ok\n")
    body = {"prompt": "the", "max_tokens": 5, "seed": 1, "ignore_eos": True}
    status, text = ask(port, "POST", "/stream", body)
    *pieces, last = events_of(text)
    assert status == 200
    assert last["finish_reason"] in ("length", "stop")
    assert "".join(piece["text"] for piece in pieces)
    assert events_of(ask(port, "POST", "/stream", body)[1])[-1] == last

    for wrong, says in (
        ({"max_tokens": 5}, 'with a "prompt"'),
        ({"prompt": "the", "temprature": 1}, "there is no option 'temprature'"),
        ({"prompt": "the", "temperature": 101}, "`temperature` must be"),
        ({"prompt": ["x"]}, "must be a token id"),
    ):
        status, text = ask(port, "POST", "/stream", wrong)
        assert status == 400
        assert says in text
    assert ask(port, "GET", "/nothing")[0] == 404
    assert ask(port, "GET", "/stream") == (405, "/stream takes POST\n")
    assert ask(port, "POST", "/metrics", {}) == (405, "/metrics takes GET\n")
    assert metric(port, "sinkstream_requests_total") == 2

    # A client that leaves ends its stream.
    endless = {"prompt": "the", "max_tokens": None, "ignore_eos": True, "seed": 1}
    connections = []
    for _ in range(2):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("POST", "/stream", json.dumps(endless))
        connections.append((connection, connection.getresponse()))
    left, response = connections[0]
    assert response.readline().startswith(b"data: ")
    response.close()
    left.close()
    deadline = time.monotonic() + 20
    while metric(port, "sinkstream_running_requests") > 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)

    process.send_signal(signal.SIGTERM)
    rest = events_of("data: {}\n\n" + connections[1][1].read().decode())
    assert rest[-1]["finish_reason"] == "cancelled", "the other client gets the end of its stream"
    assert process.wait(timeout=20) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""
