"""Generated text breaks at words at a terminal's edge; progress bars appear only at a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from sinkstream.cli.terminal import WordWrap, fold, progress_bar
from tests.python.cli.terminal import Terminal


def lines_of(written: str) -> list[str]:
    """Return what a terminal shows after text in which words are erased backwards."""
    lines = [""]
    for part in re.split(r"(\x1b\[\d+D\x1b\[K|\n)", written):
        if part == "\n":
            lines.append("")
        elif part.startswith("\x1b"):
            left = int(part[2 : part.index("D")])
            while left > 0:
                left -= cell_len(lines[-1][-1])
                lines[-1] = lines[-1][:-1]
            assert left == 0
        else:
            lines[-1] += part
    return lines


def wrap(text: str, width: int, piece: int = 3) -> list[str]:
    wrapper = WordWrap()
    pieces = [text[begin : begin + piece] for begin in range(0, len(text), piece)]
    return lines_of("".join(wrapper.feed(part, width) for part in pieces))


def test_a_word_that_reaches_the_edge_starts_the_next_line() -> None:
    assert wrap("once upon a time", 11) == ["once upon ", "a time"]
    assert wrap("once upon a time", 12) == ["once upon a", "time"]


def test_a_word_longer_than_a_line_is_broken() -> None:
    assert wrap("incomprehensible", 8) == ["incompr", "ehensib", "le"]
    assert wrap("so incomprehensible", 8) == ["so ", "incompr", "ehensib", "le"]


def test_lines_of_the_text_stay() -> None:
    assert wrap("a\n\nb\n", 5) == ["a", "", "b", ""]
    assert wrap("abcd\nefgh", 5) == ["abcd", "efgh"]


def test_wide_characters_break_anywhere() -> None:
    assert wrap("漢字漢字漢", 6) == ["漢字", "漢字", "漢"]


@given(st.text(alphabet="ab \n漢é\t"), st.integers(4, 12), st.integers(1, 7))
def test_lines_fit_and_nothing_but_spaces_is_lost(text: str, width: int, piece: int) -> None:
    lines = wrap(text, width, piece)
    assert all(cell_len(line.expandtabs()) < width for line in lines if "\t" not in line)
    assert "".join("".join(lines).split()) == "".join(text.split())


@given(st.text(alphabet="abc d \n", max_size=60), st.integers(6, 12))
def test_words_that_fit_on_a_line_are_never_broken(text: str, width: int) -> None:
    shown = "\n".join(wrap(text, width)).split()
    whole = [word for word in text.split() if len(word) < width]
    if len(whole) == len(text.split()):
        assert shown == whole


@pytest.mark.parametrize("piece", [1, 2, 5, 100])
def test_the_pieces_do_not_matter(piece: int) -> None:
    text = "the sea was calm and the night was incomprehensibly long\nand so on 漢字 " * 3
    assert wrap(text, 16, piece) == wrap(text, 16, 1)


def test_a_message_is_folded_at_a_terminal_only() -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 20, 0, 0))
    sentence = "chat: the command must be one of those of /help."
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal, os.fdopen(ours, "rb"):
        folded = fold(sentence, terminal)
        assert max(map(len, folded.split("\n"))) <= 20
        assert folded.split() == sentence.split()
    with Path(os.devnull).open("w", encoding="utf-8") as elsewhere:
        assert fold(sentence, elsewhere) == sentence


SCRIPT = """
import time
from sinkstream.cli.terminal import progress_bar
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
