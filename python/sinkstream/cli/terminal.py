"""Terminals: what is one, and what is shown on it: safe text, wrapped words, a progress bar."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from sinkstream.cli.interrupts import raising

# Terminals interpret control characters, and a model may write any. Only newline and tab are safe.
_CONTROL = dict.fromkeys((*range(32), *range(127, 160)), "\N{REPLACEMENT CHARACTER}")
del _CONTROL[ord("\n")], _CONTROL[ord("\t")]
_TAB = 8
# The speed of a bar is averaged over the last two minutes, because the first tokens of a text are
# fastest.
_AVERAGE_S = 120.0


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a standard stream is a terminal. None, a closed one, is not."""
    return stream is not None and stream.isatty()


def obeys_escapes() -> bool:
    """Return whether a terminal obeys escape sequences; that of an editor may not."""
    return os.environ.get("TERM", "dumb") != "dumb"


def printable(text: str) -> str:
    """Replace control characters, so that a terminal shows them instead of obeying them."""
    return text.translate(_CONTROL)


def width_of(stream: TextIO) -> int | None:
    """Return a terminal's width in cells; None for anything else, or if it is unknown."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):  # not a terminal, closed, or without a descriptor
        return None


def fold(text: str, stream: TextIO) -> str:
    """Break lines at words where a terminal would break them anywhere; a pipe has no width."""
    width = width_of(stream)
    if width is None:
        return text
    lines = (textwrap.wrap(line, width, break_on_hyphens=False) for line in text.split("\n"))
    return "\n".join("\n".join(parts) for parts in lines)


def can_wrap(stream: TextIO) -> bool:
    """Whether a stream is a terminal of known width that can erase a word."""
    width = width_of(stream)
    return width is not None and width > 1 and obeys_escapes()


class WordWrap:
    """Adds the line breaks of a terminal of a given width to text that arrives in pieces.

    A word is shown as it arrives. If it reaches the edge, it is erased and starts the next line.
    """

    def __init__(self) -> None:
        from rich.cells import cell_len  # slow to import, so only if text is wrapped

        self._cells_of = cell_len
        self._column = 0
        self._word = ""
        """What follows the last space of the line: it moves to the next line if it grows too long.
        Empty also if nothing can move."""

    def feed(self, text: str, width: int) -> str:
        """Return what to write for a piece of text, on lines of fewer than `width` cells.

        The last cell stays empty: terminals differ in where the cursor goes after a write to it.
        """
        return "".join(self._next(character, width - 1) for character in text)

    def _next(self, character: str, room: int) -> str:
        if character == "\n":
            return self._break("")
        if character == "\t":
            self._word = ""
            self._column = (self._column // _TAB + 1) * _TAB
            return character if self._column <= room else self._break("")
        size = self._cells_of(character)
        fits = self._column + size <= room
        if character == " ":
            self._word = ""
            self._column += 1
            return character if fits else self._break("")
        out = "" if fits else self._move_word(room - size)
        # A wide character may stand at the start of any line.
        self._word = "" if size > 1 else self._word + character
        self._column += size
        return out + character

    def _move_word(self, room: int) -> str:
        moved = self._cells_of(self._word)
        if moved in (0, self._column) or moved > room:  # it would not fit on a line of its own
            return self._break("")
        return f"\x1b[{moved}D\x1b[K" + self._break(self._word)

    def _break(self, word: str) -> str:
        self._word = word
        self._column = self._cells_of(word)
        return "\n" + word


@contextmanager
def progress_bar(
    name: str, *, in_bytes: bool = False, with_time: bool = False, note: str = ""
) -> Iterator[Callable[..., None]]:
    """Show a bar on standard error until the end of the block.

    A `note` is shown after it: a format string for the arguments after (done, total).

    Yields:
        A function of (done, total, …) that moves the bar. It does nothing if standard error is
        not a terminal.
    """
    if not is_terminal(sys.stderr):
        yield lambda *_: None
        return
    with raising(False):
        # Slow to import, so only if a bar is shown.
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            ProgressColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

    columns: list[ProgressColumn] = [
        # Markup would read rich's table of emoji, which takes half a megabyte.
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn() if in_bytes else MofNCompleteColumn(),
    ]
    if with_time:
        columns += [TimeElapsedColumn(), TimeRemainingColumn()]
    columns.append(TextColumn("{task.fields[note]}", markup=False))
    with Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        speed_estimate_period=_AVERAGE_S,
    ) as progress:
        task = progress.add_task(name, total=None, note="")
        has_begun = False

        def show(done: int, total: int, *found: object) -> None:
            nonlocal has_begun
            if not has_begun:
                # What a resumed run had done before does not count towards its speed.
                has_begun = True
                progress.reset(task, total=total, completed=done)
            progress.update(task, total=total, completed=done, note=note.format(*found))

        yield show
