"""Runs an engine in its own process."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from peers.peer import NotPossible, Peer

# name -> module and class in this folder, and arguments in addition to path and threads
ENGINES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "sinkstream": ("ours", "Sinkstream", {}),
    "sinkstream, float32 inputs": ("ours", "Sinkstream", {"dtype": "float32"}),
    "sinkstream, int16 inputs": ("ours", "Sinkstream", {"dtype": "int16"}),
    "sinkstream, int8 inputs": ("ours", "Sinkstream", {"dtype": "int8"}),
    "llama.cpp": ("llama_cpp_peer", "LlamaCpp", {"flash": False}),
    "llama.cpp, flash attention": ("llama_cpp_peer", "LlamaCpp", {"flash": True}),
    "OpenVINO GenAI": ("openvino_peer", "OpenVino", {}),
    "transformers, sinks token by token": ("transformers_peer", "Streaming", {}),
    "transformers, window recomputed": ("transformers_peer", "Recomputing", {}),
}


class IsolatedPeer:
    """An engine at the other end of a pipe. A call that it cannot do raises NotPossible."""

    def __init__(self, name: str, path: str, threads: int) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, name, path, threads), daemon=True
        )
        self._process.start()
        theirs.close()
        try:
            self.description: str = self._answer()
        except NotPossible:
            self._join()
            raise

    def ask(self, what: str, *arguments: int) -> float:
        """Call a method of `Peer` that returns a number, by its name."""
        self._send((what, arguments))
        number: float = self._answer()
        return number

    def mapped_files(self) -> set[Path]:
        """Return the files that the process has in its memory: programs and libraries."""
        lines = Path(f"/proc/{self._process.pid}/maps").read_text().splitlines()
        return {Path(words[5]) for line in lines if len(words := line.split(maxsplit=5)) == 6}

    def close(self) -> None:
        """End the process, unless it has ended already."""
        with contextlib.suppress(NotPossible):
            self._send(None)
        self._join()

    def _send(self, request: object) -> None:
        try:
            self._pipe.send(request)
        except OSError:
            raise NotPossible(self._ending()) from None

    def _answer(self) -> Any:
        try:
            kind, value = self._pipe.recv()
        except (EOFError, OSError):
            raise NotPossible(self._ending()) from None
        if kind == "failure":
            raise NotPossible(value)
        return value

    def _join(self) -> None:
        """Wait for the process up to 30 s, then kill it: a library's threads may keep it alive."""
        self._process.join(timeout=30)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()

    def _ending(self) -> str:
        """Return how the process ended after it closed its end of the pipe."""
        self._join()
        code = self._process.exitcode or 0
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return f"its process ended {how}, without an answer"


def _reason(error: Exception) -> str:
    """Return an error's type and its last line; the lines before may be a traceback."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1]}"[:300]


def _serve(pipe: Connection, name: str, path: str, threads: int) -> None:
    # Libraries with thread pools read this when they are imported.
    os.environ["OMP_NUM_THREADS"] = str(threads)
    module, kind, options = ENGINES[name]
    try:
        engine: Peer = getattr(importlib.import_module(f"peers.{module}"), kind)(
            path, threads, **options
        )
    except Exception as error:  # any error of a library is the reason that the table shows
        pipe.send(("failure", _reason(error)))
        return
    pipe.send(("ready", engine.describe()))
    while (request := pipe.recv()) is not None:
        what, arguments = request
        try:
            pipe.send(("answer", getattr(engine, what)(*arguments)))
        except Exception as error:  # likewise
            pipe.send(("failure", _reason(error)))
