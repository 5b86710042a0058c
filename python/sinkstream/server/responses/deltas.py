"""Text in the pieces that clients get: each of them can be read again."""

from __future__ import annotations

from array import array
from collections.abc import Sequence


class Deltas:
    """Growing text. Holds its UTF-8 once, and two numbers for each piece."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._ends: array[int] = array("I")
        self._generated: array[int] = array("I")

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> str:
        """Return a piece, counted from 0."""
        begin = self._ends[number - 1] if number else 0
        return self._text[begin : self._ends[number]].decode()

    @property
    def text(self) -> str:
        """Return the whole text."""
        return self._text.decode()

    @property
    def sizes(self) -> list[int]:
        """Return the bytes of each piece."""
        return [end - begin for begin, end in zip([0, *self._ends], self._ends, strict=False)]

    @property
    def generated(self) -> Sequence[int]:
        """Return how many tokens had been generated at the end of each piece."""
        return self._generated

    def add(self, text: str, generated: int = 0) -> None:
        """Add a piece, after which `generated` tokens have been generated."""
        self._text += text.encode()
        self._ends.append(len(self._text))
        self._generated.append(generated)

    def add_all(self, text: str, sizes: Sequence[int], generated: Sequence[int] = ()) -> None:
        """Add text in pieces of the given sizes; their token counts may be unknown."""
        encoded, begin = text.encode(), 0
        for index, size in enumerate(sizes):
            piece = encoded[begin : begin + size].decode()
            self.add(piece, generated[index] if generated else 0)
            begin += size
