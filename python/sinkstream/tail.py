"""The end of a reply, in a bounded amount of memory however long the reply is."""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Iterable

# A few pieces of text are joined at a time: one string is smaller than a hundred.
_BLOCK_CHARACTERS = 2048


class Tail:
    """Keeps the last `max_tokens` tokens and the last `max_characters` characters; None keeps all.

    Example:
        >>> tail = Tail(max_tokens=2, max_characters=3)
        >>> tail.add("once", [7, 8, 9], [-0.5, -0.5, -0.25])
        >>> tail.text, tail.token_ids, tail.dropped_tokens, tail.dropped_characters
        ('nce', [8, 9], 1, 1)
    """

    def __init__(self, max_tokens: int | None, max_characters: int | None) -> None:
        self._max_tokens = sys.maxsize if max_tokens is None else max_tokens
        self._max_characters = sys.maxsize if max_characters is None else max_characters
        self._ids = array("i")
        self._logprobs = array("f")
        self._blocks: deque[str] = deque()
        self._block_characters = 0
        self._pieces: list[str] = []
        self._piece_characters = 0
        self._seen_tokens = 0
        self._seen_characters = 0

    def add(self, text: str, ids: Iterable[int], logprobs: Iterable[float]) -> None:
        """Append text and the tokens that came with it."""
        before = len(self._ids)
        self._ids.extend(ids)
        self._logprobs.extend(logprobs)
        self._seen_tokens += len(self._ids) - before
        if len(self._ids) > 2 * self._max_tokens:  # seldom, so that a token costs O(1)
            excess = len(self._ids) - self._max_tokens
            del self._ids[:excess]
            del self._logprobs[:excess]
        if text:
            self._pieces.append(text)
            self._piece_characters += len(text)
            self._seen_characters += len(text)
            if self._piece_characters >= _BLOCK_CHARACTERS:
                self._close_block()

    def _close_block(self) -> None:
        self._blocks.append("".join(self._pieces))
        self._block_characters += self._piece_characters
        self._pieces.clear()
        self._piece_characters = 0
        while (
            len(self._blocks) > 1
            and self._block_characters - len(self._blocks[0]) >= self._max_characters
        ):
            self._block_characters -= len(self._blocks.popleft())

    @property
    def text(self) -> str:
        """Return the text that is kept."""
        text = "".join((*self._blocks, *self._pieces))
        return text[max(0, len(text) - self._max_characters) :]

    @property
    def token_ids(self) -> list[int]:
        """Return the ids that are kept."""
        return self._ids[max(0, len(self._ids) - self._max_tokens) :].tolist()

    @property
    def logprobs(self) -> list[float]:
        """Return the log-probabilities of `token_ids`."""
        return self._logprobs[max(0, len(self._logprobs) - self._max_tokens) :].tolist()

    @property
    def dropped_tokens(self) -> int:
        """Return how many tokens came before `token_ids`."""
        return max(0, self._seen_tokens - self._max_tokens)

    @property
    def dropped_characters(self) -> int:
        """Return how many characters came before `text`."""
        return max(0, self._seen_characters - self._max_characters)
