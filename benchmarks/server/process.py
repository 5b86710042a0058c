"""Servers under test, each in its own process: `sinkstream serve`, and those of other projects."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from machine import status_kib

_BENCHMARKS = Path(__file__).parents[1]
_START_S = 120
_STOP_S = 60


class NotReady(SystemExit):
    """A server does not start; the message says why. It ends a program that does not catch it."""


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

    def family(self) -> list[int]:
        """Return the process, and all processes that descend from it and are still there."""
        parents = dict(map(_parent, Path("/proc").glob("[0-9]*")))
        found = [self.process.pid]
        for pid in found:  # grows meanwhile
            found += [child for child, parent in parents.items() if parent == pid]
        return found

    def resident_kib(self) -> int:
        """Return the memory of the family. A page that several processes have counts for each."""
        return sum(status_kib("VmRSS", "VmSwap", pid=pid) for pid in self.family())

    def pause(self) -> None:
        """Stop the family where it is, until `go_on`."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let a paused family run."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the family, paused or not, without asking."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.family():
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(pid, number)

    def stop(self) -> int:
        """End the process as SIGTERM does; return its exit code."""
        self.process.terminate()
        return self.process.wait(_STOP_S)


def _parent(folder: Path) -> tuple[int, int]:
    """Return a process's id and its parent's; 0 if it has ended meanwhile."""
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return int(folder.name), 0
    return int(folder.name), int(fields[1])


@dataclass(frozen=True)
class Engine:
    """A server with an OpenAI-compatible API. `compared` sets the words in braces."""

    command: tuple[str, ...]
    fields: Mapping[str, Any]  # of each request, in addition to `SAMPLING`
    environment: Mapping[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()  # a command to run first, in the folder of benchmarks
    health: str = "/health"  # answers once the server is ready
    after: tuple[str, ...] = ()  # a command to run then


# Of every request. At a temperature of 1, the order of the filters does not matter.
SAMPLING = {"temperature": 1.0, "top_p": 0.95, "seed": 1}
_FIELDS = {"top_k": 40, "min_p": 0.0, "ignore_eos": True}  # where requests have them
_USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
_LISTEN = ("--host", "127.0.0.1", "--port", "{port}")
_LLAMA = Engine(
    ("llama-server", *_LISTEN, "-m", "{file}", "-c", "{context}", "-t", "{threads}", "-np", "1"),
    {**_FIELDS, "timings_per_token": True},
)
ENGINES = {
    "sinkstream": Engine(
        (
            *(sys.executable, "-m", "sinkstream", "serve", "{file}", *_LISTEN, "--store", "none"),
            *("--sinks", "4", "--window", "{window}", "--max-sequences", "1"),
            *("--threads", "{threads}"),
        ),
        {**_FIELDS, **_USAGE},
    ),
    "llama.cpp": _LLAMA,
    "llama.cpp, context shift": replace(
        _LLAMA, command=(*_LLAMA.command, "--context-shift", "--keep", "-1")
    ),
    "transformers": Engine(
        ("transformers", "serve", "{folder}/unpacked", *_LISTEN, "--device", "cpu"),
        # No token has the id -1, so that none ends the text.
        {"generation_config": json.dumps({"do_sample": True, "top_k": 40, "eos_token_id": -1})},
        {"OMP_NUM_THREADS": "{threads}", "HF_HUB_OFFLINE": "1"},
        # Its own reader of GGUF files is for folders of a hub.
        before=(sys.executable, "-m", "peers.transformers_peer", "{file}", "{folder}/unpacked"),
    ),
    "vLLM": Engine(
        ("vllm", "serve", "{file}", *_LISTEN, "--max-model-len", "{context}"),
        {**_FIELDS, **_USAGE},
        {"OMP_NUM_THREADS": "{threads}"},
    ),
    "Ollama": Engine(
        ("ollama", "serve"),
        {"model": "endurance"},
        {
            "OLLAMA_HOST": "127.0.0.1:{port}",
            "OLLAMA_CONTEXT_LENGTH": "{context}",
            "OLLAMA_MODELS": "{folder}/models",
        },
        health="/",
        after=("ollama", "create", "endurance", "-f", "{folder}/Modelfile"),
    ),
}
_MODELFILE = "FROM {file}\nPARAMETER num_thread {threads}\nPARAMETER top_k 40\n"


def program(engine: Engine) -> str | None:
    """Return the path of an engine's program in this environment or on the PATH, if it is there."""
    folders = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return shutil.which(engine.command[0], path=folders)


def version(path: str) -> str:
    """Return the version of the package of a program, or what the program says."""
    name = "sinkstream" if path == sys.executable else Path(path).name
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    told = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    lines = (told.stdout + told.stderr).splitlines()
    return next((line.strip() for line in lines if "version" in line), "unknown")


@contextmanager
def compared(engine: Engine, file: Path, context: int, threads: int) -> Iterator[Server]:
    """Run an engine's server on a free port, with one seat.

    Raises:
        NotReady: It does not start; with the last line of its log.
    """
    path = program(engine)
    if path is None:
        raise NotReady(f"{engine.command[0]} is not on the PATH.")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    given = {"file": file, "context": context, "window": context - 4, "threads": threads}
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w+") as log:
        given |= {"folder": folder, "port": port}
        (Path(folder) / "Modelfile").write_text(_MODELFILE.format(**given))
        extra = {name: word.format(**given) for name, word in engine.environment.items()}

        def run(command: tuple[str, ...]) -> None:
            words = [word.format(**given) for word in command]
            environment = {**os.environ, **extra}
            if words:
                subprocess.run(
                    words, check=True, stdout=log, stderr=log, env=environment, cwd=_BENCHMARKS
                )

        try:
            run(engine.before)
            command = [path, *(word.format(**given) for word in engine.command[1:])]
            with _running(command, log, stderr=log, environment=extra) as process:
                server = ready(Server(port, process), engine.health)
                run(engine.after)
                try:
                    yield server
                finally:
                    server.kill()  # some would wait for the end of their replies
        except (NotReady, subprocess.CalledProcessError) as reason:
            log.seek(0)
            last = (log.read().strip().splitlines() or ["its log is empty"])[-1]
            raise NotReady(f"{reason} Its log ends: {last[:300]}") from None


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
def _running(
    command: Sequence[str],
    stdout: int | IO[str],
    *,
    stderr: int | IO[str] = subprocess.DEVNULL,  # nothing reads the log: a pipe would fill up
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[str]]:
    given = {**os.environ, **(environment or {})}
    process = subprocess.Popen(command, stdout=stdout, stderr=stderr, text=True, env=given)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        finally:
            process.kill()


def ready(server: Server, health: str = "/health") -> Server:
    """Return a server once it answers.

    Raises:
        NotReady: It has ended, or does not answer in time.
    """
    end = time.monotonic() + _START_S
    while time.monotonic() < end and server.process.poll() is None:
        try:
            server.get(health)
        except OSError:  # not listening yet, or 503 while it loads
            time.sleep(0.05)
        else:
            return server
    raise NotReady("The server does not answer.")
