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

from machine import status_kib

_START_S = 120
_STOP_S = 60


@dataclass(frozen=True)
class Server:
    """A running server on this machine."""

    port: int
    process: subprocess.Popen[str]

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
        return status_kib("RssAnon", "VmSwap", pid=self.process.pid)

    def open_files(self) -> int:
        """Return how many files the process has open."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def stop(self) -> int:
        """End the process as SIGTERM does; return its exit code."""
        self.process.terminate()
        return self.process.wait(_STOP_S)


@contextmanager
def sinkstream_server(options: Sequence[str], *, keeps: bool = True) -> Iterator[Server]:
    """Run `sinkstream serve` with a store of its own, or with none."""
    with tempfile.TemporaryDirectory() as folder:
        store = folder if keeps else "none"
        with serving(["--store", store, *options]) as server:
            yield server


@contextmanager
def serving(options: Sequence[str]) -> Iterator[Server]:
    """Run `sinkstream serve` on a free port."""
    command = [sys.executable, "-m", "sinkstream", "serve", "--port", "0", *options]
    with _running(command, subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline()  # "Listening on http://127.0.0.1:PORT"
        yield ready(Server(int(line.rsplit(":", 1)[1]), process))


@contextmanager
def llama_server(binary: str, port: int, options: Sequence[str]) -> Iterator[Server]:
    """Run llama.cpp's server."""
    command = [binary, "--host", "127.0.0.1", "--port", str(port), "--no-webui", "--log-disable"]
    with _running([*command, *options], subprocess.DEVNULL) as process:
        yield ready(Server(port, process))


@contextmanager
def _running(command: Sequence[str], stdout: int) -> Iterator[subprocess.Popen[str]]:
    # Nothing reads the log: a pipe would fill up.
    process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        finally:
            process.kill()


def ready(server: Server) -> Server:
    """Return a server once it answers."""
    end = time.monotonic() + _START_S
    while time.monotonic() < end and server.process.poll() is None:
        try:
            server.get("/health")
        except OSError:  # not listening yet, or 503 while it loads
            time.sleep(0.05)
        else:
            return server
    raise SystemExit(f"the server does not answer: {server.process.args}")
