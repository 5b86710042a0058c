"""Runs a program at a pseudo-terminal; the test reads its output and presses its keys."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

# Ctrl-C reaches a program only from its controlling terminal, which the program must claim itself.
_TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)

CTRL_C = b"\x03"
CTRL_D = b"\x04"
UP = b"\x1b[A"


class Terminal:
    """Runs a command at its own terminal. `out`, if given, receives its standard output."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], out: Path | None = None
    ) -> None:
        self._side, theirs = pty.openpty()
        self._seen = b""
        with (out or Path(os.devnull)).open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _TAKE_TERMINAL, *command],
                stdin=theirs,
                stdout=theirs if out is None else file,
                stderr=theirs,
                start_new_session=True,
                env={"TERM": "dumb", "INPUTRC": os.devnull, **os.environ, **environment},
            )
        os.close(theirs)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._side)

    def press(self, keys: bytes) -> None:
        """Type keys."""
        os.write(self._side, keys)

    def read_until(self, expected: str) -> str:
        """Return the output up to and including `expected`. Each byte is read once."""
        wanted = expected.encode()
        while wanted not in self._seen:
            more = self._read()
            assert more, f"{expected!r} never came, but {self._seen[-2000:]!r}"
            self._seen += more
        before, _, self._seen = self._seen.partition(wanted)
        return (before + wanted).decode(errors="replace")

    def end(self) -> tuple[int, str]:
        """Wait for the program's end; return its exit code and the rest of its output."""
        while more := self._read():
            self._seen += more
        return self.process.wait(timeout=30), self._seen.decode(errors="replace")

    def _read(self) -> bytes:
        ready, _, _ = select.select([self._side], [], [], 30)
        try:
            return os.read(self._side, 65536) if ready else b""
        except OSError:  # the program has closed its side
            return b""


def pause(seconds: float) -> None:
    """Wait, so that two Ctrl-C do not count as one double press."""
    time.sleep(seconds)
