"""Sends a signal to a program in the middle of its output."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence


def end_by_signal(
    program: Sequence[str], number: signal.Signals, *, after: int
) -> tuple[int, bytes, bytes]:
    """Send the signal after this many bytes of standard output; return the code and the rest."""
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read(after)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err
