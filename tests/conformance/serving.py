"""`sinkstream serve` as a process, for clients that know nothing of it but its address."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_LISTENING = re.compile(r"http://127\.0\.0\.1:(\d+)")


@dataclass(frozen=True, slots=True)
class Served:
    """A server that answers."""

    port: int

    @property
    def address(self) -> str:
        """Return its address, without a path."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        """Return what OpenAI's clients call the base URL."""
        return f"{self.address}/v1"


@contextmanager
def served(folder: Path, *options: str) -> Iterator[Served]:
    """Serve SmolLM2 on a free port.

    Args:
        folder: For the conversations and the log.
        options: Of `sinkstream serve`, in addition.
    """
    command = [sys.executable, "-m", "sinkstream.cli", "serve", "smollm2", "--port", "0"]
    command += ["--store", str(folder / "conversations"), "--drain-s", "1", *options]
    log = folder / "log"
    with log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            yield Served(_port(process, log))
        finally:
            process.terminate()
            process.wait(60)


def _port(process: subprocess.Popen[str], log: Path) -> int:
    """Return the port, once the server says that it listens."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := _LISTENING.search(line):
            return int(found[1])
    raise AssertionError(f"The server has ended: {log.read_text(encoding='utf-8')[-2000:]}")
