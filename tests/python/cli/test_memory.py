"""The memory of a command: its model's file, and a fixed number of megabytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.python.cli.terminal import CTRL_C, Terminal
from tests.python.cli.test_start import modules_after

# Python, the tokenizer, 9 MB of cache, 15 of scratch, 4 of what guesses are learned in and 6 of the
# logits of drafts take 55 in a pipe, and 59 to 63 on a terminal.
_OWN_BYTES = 66_000_000
_DEMO = [sys.executable, "-m", "sinkstream.cli", "demo", "--endless", "--threads", "2", "-m"]

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="there is no /proc, which tells the memory"
)


def resident_bytes(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def on_a_terminal(model: Path) -> int:
    """Return the memory of a demo whose cache is full, with its status line."""
    with Terminal([*_DEMO, str(model)], {"TERM": "xterm", "COLUMNS": "100"}) as terminal:
        terminal.read_until("evicted 1")
        found = resident_bytes(terminal.process.pid)
        terminal.press(CTRL_C)
        assert terminal.end()[0] == 130
        return found


def in_a_pipe(model: Path) -> int:
    """Return the memory of a demo whose cache is full, with plain text."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen([*_DEMO, str(model)], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        process.stdout.read(1500)  # of 300 tokens
        found = resident_bytes(process.pid)
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    assert process.returncode == 130
    return found


@needs_proc
@pytest.mark.parametrize(
    "measure", [on_a_terminal, pytest.param(in_a_pipe, marks=pytest.mark.full)]
)
def test_a_demo_takes_its_models_file_and_a_fixed_amount(
    smollm2: Path, measure: Callable[[Path], int]
) -> None:
    assert measure(smollm2) < smollm2.stat().st_size + _OWN_BYTES


def test_a_text_is_written_without_what_conversations_need(checkpoint: str) -> None:
    imported = modules_after("demo", "-m", checkpoint, "--tokens", "3", "--prompt", "ab")
    assert "sinkstream.cli.demo" in imported
    needless = {"_hashlib", "asyncio", "html", "jinja2", "numpy", "pydantic", "ssl", "torch"}
    own = {"sinkstream.sessions.session", "sinkstream.text.chat_format"}
    assert imported & (needless | own) == set()
