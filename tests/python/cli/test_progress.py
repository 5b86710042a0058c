"""Progress bars appear only at a terminal."""

from __future__ import annotations

import sys

import pytest

from sinkstream.cli.progress import progress_bar
from tests.python.cli.terminal import Terminal

SCRIPT = """
import time
from sinkstream.cli.progress import progress_bar
with progress_bar("Reading", with_time=True, note="perplexity {:.2f}") as show:
    show(40, 100, 12.3456)
    show(60, 100, 7.8912)
    time.sleep(0.5)
"""


def test_a_terminal_shows_the_count_and_the_note() -> None:
    with Terminal([sys.executable, "-c", SCRIPT], {"TERM": "xterm"}) as terminal:
        terminal.read_until("Reading")
        terminal.read_until("60/100")
        terminal.read_until("perplexity 7.89")
        assert terminal.end()[0] == 0


def test_elsewhere_nothing_is_written(capfd: pytest.CaptureFixture[str]) -> None:
    with progress_bar("Reading", in_bytes=True) as show:
        show(40, 100)
    assert capfd.readouterr() == ("", "")
