"""The example runs as users run it: piped, at a terminal, and ended with Ctrl-C."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "examples" / "many_streams.py"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        # Poisoning touches cache memory at allocation; here the model must do that itself.
        env={k: v for k, v in os.environ.items() if k != "SINKSTREAM_POISON_PAGES"},
    )


class OnTerminal:
    """The example at a terminal of 30 lines and 100 columns."""

    def __init__(self, *arguments: object) -> None:
        self.terminal, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, SCRIPT, *map(str, arguments)],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            env={**os.environ, "TERM": "xterm-256color"},
        )
        os.close(inside)

    def __enter__(self) -> OnTerminal:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()  # ends it even if the test has failed
        self.process.wait()
        os.close(self.terminal)

    def read(self, until: str | None = None) -> str:
        """Return its output until a pattern appears, or until its end."""
        written = b""
        end = time.monotonic() + 60
        while until is None or not re.search(until.encode(), written):
            assert time.monotonic() < end, written[-1000:]
            assert select.select([self.terminal], [], [], 60)[0], written[-1000:]
            try:
                some = os.read(self.terminal, 65536)
            except OSError:  # the end of a terminal on Linux
                some = b""
            if not some:
                assert until is None, written
                break
            written += some
        return written.decode(errors="replace")  # it may begin or end in a character

    def end(self) -> int:
        """Wait for the process; return its exit code."""
        return self.process.wait(timeout=30)


def test_every_stream_writes_all_its_tokens_far_past_the_window(
    tiny_folder: Callable[[str], Path],
) -> None:
    done = run("--model", tiny_folder("llama"), "--streams=5", "--tokens=400", "--window=28")
    assert (done.returncode, done.stderr) == (0, "")
    lines = re.findall(
        r"^stream +(\d+): 400 tokens, [\d.,]+ tokens/s, (\d+) evicted, length$", done.stdout, re.M
    )
    assert sorted(int(number) for number, _ in lines) == [0, 1, 2, 3, 4]
    assert all(int(evicted) > 400 - 32 for _, evicted in lines)
    assert re.search(r"^together:  2,000 tokens in [\d.]+ s, [\d.]+ tokens/s$", done.stdout, re.M)


def test_memory_is_what_the_capacity_says_and_does_not_grow(smollm2: Path) -> None:
    done = run("--model", smollm2, "--streams=8", "--tokens=40")
    assert (done.returncode, done.stderr) == (0, "")
    found = re.search(
        r"says (\d+) MiB .* (\d+) caches, .* loading took (\d+) MiB, streaming ([+-][\d.]+) MiB",
        done.stdout,
    )
    assert found
    said, caches, loaded, grown = map(float, found.groups())
    assert caches > 60
    # In addition to the reported memory: the tokenizer and the threads.
    assert 0.95 * said < loaded < said + 50
    assert grown < 10  # a cache allocated late would show in full
    (share,) = re.findall(r"^fairness: .* ([\d.]+)%$", done.stdout, re.M)
    assert 50 < float(share) <= 100


def test_a_terminal_shows_a_bar_for_each_stream(tiny_folder: Callable[[str], Path]) -> None:
    with OnTerminal("--model", tiny_folder("llama"), "--streams=3", "--tokens=50") as shown:
        text = shown.read()
        assert shown.end() == 0, text
    last = text.rpartition("\x1b[2K")[2]  # after the last cleared line
    assert last.count("50/50") == 3
    # Tiny models write arbitrary bytes; none may reach the terminal as a command.
    escapes = re.findall("\x1b.{0,3}", text)
    assert all(re.match(r"\x1b\[[\d?]", escape) for escape in escapes)
    assert not set(text) & {chr(code) for code in range(32) if chr(code) not in "\r\n\x1b"}


def test_ctrl_c_ends_all_streams_at_once(tiny_folder: Callable[[str], Path]) -> None:
    with OnTerminal("--model", tiny_folder("llama"), "--streams=3", "--tokens=100000000") as shown:
        shown.read(until=r"\d\d\d/100000000")
        begin = time.monotonic()
        shown.process.send_signal(signal.SIGINT)
        text = shown.read()
        assert shown.end() == 1
    assert text.endswith("Stopped.\r\n")
    assert time.monotonic() - begin < 30
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("argument", "rule"),
    [
        ("--streams=0", "--streams must be at least 1, but is 0."),
        ("--tokens=1", "--tokens must be at least 2, but is 1."),
        ("--window=0", "--window must be at least 1, but is 0."),
    ],
)
def test_numbers_that_make_no_sense_are_refused(argument: str, rule: str) -> None:
    done = run(argument)
    assert done.returncode == 2
    assert rule in done.stderr


def test_a_model_that_is_missing_is_a_sentence(tmp_path: Path) -> None:
    done = run("--model", tmp_path / "none.gguf")
    assert done.returncode == 1
    assert "none.gguf" in done.stderr
    assert "Traceback" not in done.stderr
