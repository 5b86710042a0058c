"""Breaks text at words while it grows, so that a terminal does not break it within one."""

from __future__ import annotations

from typing import TextIO

from rich.cells import cell_len

from sinkstream.cli.terminal import obeys_escapes, width_of

_TAB = 8


class WordWrap:
    """Adds the line breaks of a terminal of a given width to text that arrives in pieces.

    A word is shown as it arrives. If it reaches the edge, it is erased and starts the next line.
    """

    def __init__(self) -> None:
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
        size = cell_len(character)
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
        moved = cell_len(self._word)
        if moved in (0, self._column) or moved > room:  # it would not fit on a line of its own
            return self._break("")
        return f"\x1b[{moved}D\x1b[K" + self._break(self._word)

    def _break(self, word: str) -> str:
        self._word = word
        self._column = cell_len(word)
        return "\n" + word


def can_wrap(stream: TextIO) -> bool:
    """Whether a stream is a terminal of known width that can erase a word."""
    width = width_of(stream)
    return width is not None and width > 1 and obeys_escapes()
