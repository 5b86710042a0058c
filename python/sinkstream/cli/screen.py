"""Writes generated text to a file, or to a terminal with a status line below the text."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Self

from rich.cells import cell_len, chop_cells
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from sinkstream.cli.terminal import is_terminal, obeys_escapes, printable
from sinkstream.streams.closing import ClosesOnExit

# Often enough to look immediate, rarely enough to leave the CPU to the model.
_REFRESH_S = 1 / 15


class PlainScreen(ClosesOnExit):
    """Writes text without a status line; to a terminal, without control characters."""

    def __init__(self) -> None:
        self._shown = printable if is_terminal(sys.stdout) else str

    def close(self) -> None:
        """End the last line."""
        sys.stdout.write("\n")
        sys.stdout.flush()

    def write(self, text: str) -> None:
        """Append text."""
        sys.stdout.write(self._shown(text))
        sys.stdout.flush()


class LiveScreen(ClosesOnExit):
    """Writes text to a terminal and keeps a status line below it.

    Finished lines scroll away like any output. Only the current line and the status below it are
    redrawn, so lines must be broken here rather than by the terminal.
    """

    def __init__(self, status: Callable[[], str], console: Console | None = None) -> None:
        """Prepare a screen.

        Args:
            status: Returns the status line; called for each redraw.
            console: The terminal. If None, standard output.
        """
        self._status = status
        self._console = console or Console(highlight=False, markup=False, emoji=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._line = ""
        self._drawn_at = 0.0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def close(self) -> None:
        """Remove the status, and end the last line."""
        self._live.update(Text(""))
        self._live.stop()
        self._console.print(Text(self._line))

    def write(self, text: str) -> None:
        """Append text; it is drawn within 1/15 second."""
        *finished, self._line = break_lines(
            self._line + printable(text).expandtabs(4), self._console.width
        )
        if finished:
            self._console.print(Text("\n".join(finished)))
        now = time.monotonic()
        if now - self._drawn_at >= _REFRESH_S:
            self._drawn_at = now
            status = Text(self._status(), "black on green", no_wrap=True, overflow="ellipsis")
            self._live.update(Group(Text(self._line), status), refresh=True)


def break_lines(text: str, width: int) -> list[str]:
    """Break text into lines of at most `width` cells, at spaces if possible.

    The last line may still grow. A character that is wider than `width` has a line of its own.
    """
    lines: list[str] = []
    for paragraph in text.split("\n"):
        rest = paragraph
        while len(rest) > 1 and cell_len(rest) > width:
            head = chop_cells(rest, width)[0] or rest[0]
            space = head.rfind(" ")
            if space > 0 and rest[len(head)] != " ":
                head = head[:space]
            lines.append(head)
            rest = rest[len(head) :].removeprefix(" ")
        lines.append(rest)
    return lines


def open_screen(status: Callable[[], str]) -> PlainScreen | LiveScreen:
    """Return the right screen for standard output."""
    can_redraw = is_terminal(sys.stdout) and obeys_escapes()
    return LiveScreen(status) if can_redraw else PlainScreen()
