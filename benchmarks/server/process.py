"""Servers under test, each in its own process: `sinkstream serve`, and llama.cpp's."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_START_S = 120


@dataclass(frozen=True)
class Server:
    """A running server on this machine."""

    port: int
    pid: int

    def get(self, path: str) -> str:
        """Return the text of a GET."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    def metric(self, name: str) -> float:
        """Return a metric without labels."""
        for line in self.get("/metrics").splitlines():
            if line.split(" ")[0] == name:
                return float(line.split(" ")[1])
        raise KeyError(name)

    def anonymous_kib(self) -> int:
        """Return the process's private memory that is not backed by a file."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


@contextmanager
def sinkstream_server(options: Sequence[str]) -> Iterator[Server]:
    """Run `sinkstream serve` with a store of its own."""
    with tempfile.TemporaryDirectory() as store:
        command = [sys.executable, "-m", "sinkstream", "serve", "--port", "0", "--store", store]
        with _running([*command, *options]) as process:
            assert process.stdout is not None
            line = process.stdout.readline()  # "Listening on http://127.0.0.1:PORT"
            yield _ready(int(line.rsplit(":", 1)[1]), process)


@contextmanager
def llama_server(binary: str, port: int, options: Sequence[str]) -> Iterator[Server]:
    """Run llama.cpp's server."""
    command = [binary, "--host", "127.0.0.1", "--port", str(port), "--no-webui", "--log-disable"]
    with _running([*command, *options]) as process:
        yield _ready(port, process)


@contextmanager
def _running(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def _ready(port: int, process: subprocess.Popen[str]) -> Server:
    server = Server(port, process.pid)
    end = time.monotonic() + _START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            server.get("/health")
        except OSError:  # not listening yet, or 503 while it loads
            time.sleep(0.05)
        else:
            return server
    raise SystemExit(f"server_bench: the server does not answer: {process.args}")
