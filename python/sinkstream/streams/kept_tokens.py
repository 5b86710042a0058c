"""What is kept of tokens: the end of a reply, in bounded memory, and a scored prompt.

Both are arrays of numbers: there may be millions.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Generic, TypeVar

from sinkstream.streams.events import PromptToken

# 32 bits per character, so that an index counts characters.
_ENCODING = "utf-32-le" if sys.byteorder == "little" else "utf-32-be"


Alternatives = tuple[tuple[int, float], ...]
"""(id, logprob) of the most probable tokens in one place, best first."""

_Number = TypeVar("_Number", int, float)


class _Ring(Generic[_Number]):
    """The last `limit` numbers appended; None keeps all. `values` is the empty storage.

    A full ring overwrites the oldest. Allocating and freeing blocks of many sizes instead would
    fragment the heap, and the process would grow slowly without bound.
    """

    def __init__(self, values: array[_Number], limit: int | None) -> None:
        self._values: array[_Number] = values
        self._limit = sys.maxsize if limit is None else limit
        self._next = 0  # index after the newest: the end, or the oldest of a full ring
        self._seen = 0

    @property
    def dropped(self) -> int:
        """Return the number of values dropped."""
        return self._seen - len(self._values)

    def append(self, values: array[_Number]) -> None:
        """Append numbers."""
        self._seen += len(values)
        end = self._next + len(values)
        if end < self._limit:
            self._values[self._next : end] = values  # overwrites, or appends at the end
            self._next = end
        else:
            self._append_round_the_end(values)

    def _append_round_the_end(self, values: array[_Number]) -> None:
        values = values[max(0, len(values) - self._limit) :]
        room = self._limit - self._next
        self._values[self._next :] = values[:room]
        self._values[: len(values) - room] = values[room:]
        self._next = len(values) - room

    def in_order(self) -> array[_Number]:
        """Return the kept values, oldest first."""
        return self._values[self._next :] + self._values[: self._next]


class Tail:
    """Keeps the last `max_tokens` tokens and the last `max_characters` characters; None keeps all.

    Example:
        >>> tail = Tail(max_tokens=2, max_characters=3)
        >>> tail.add("once", [7, 8, 9], [-0.5, -0.5, -0.25])
        >>> tail.text, tail.token_ids, tail.dropped_tokens, tail.dropped_characters
        ('nce', [8, 9], 1, 1)
    """

    def __init__(self, max_tokens: int | None, max_characters: int | None) -> None:
        self._ids = _Ring(array("i"), max_tokens)
        self._logprobs = _Ring(array("f"), max_tokens)
        self._characters = _Ring(array("I"), max_characters)
        self._max_tokens = max_tokens
        # All alternatives, concatenated in token order; created on first use.
        self._width = 0
        self._other_ids = _Ring(array("i"), 0)
        self._other_logprobs = _Ring(array("f"), 0)

    def add(
        self,
        text: str,
        ids: Iterable[int],
        logprobs: Iterable[float],
        alternatives: Sequence[Alternatives] = (),
    ) -> None:
        """Append text and its tokens.

        Every token has the same number of alternatives, or none has any.
        """
        self._ids.append(array("i", ids))
        self._logprobs.append(array("f", logprobs))
        self._characters.append(array("I", text.encode(_ENCODING)))
        if alternatives and alternatives[0]:
            self._add_alternatives(alternatives)

    def _add_alternatives(self, alternatives: Sequence[Alternatives]) -> None:
        if self._width == 0:
            self._width = len(alternatives[0])
            limit = None if self._max_tokens is None else self._max_tokens * self._width
            self._other_ids = _Ring(array("i"), limit)
            self._other_logprobs = _Ring(array("f"), limit)
        ids, logprobs = zip(*chain.from_iterable(alternatives), strict=True)
        self._other_ids.append(array("i", ids))
        self._other_logprobs.append(array("f", logprobs))

    @property
    def text(self) -> str:
        """Return the kept text."""
        return self._characters.in_order().tobytes().decode(_ENCODING)

    @property
    def token_ids(self) -> list[int]:
        """Return the kept ids."""
        return self._ids.in_order().tolist()

    @property
    def logprobs(self) -> list[float]:
        """Return the log-probabilities of `token_ids`."""
        return self._logprobs.in_order().tolist()

    @property
    def alternatives(self) -> list[Alternatives]:
        """Return the alternatives of each of `token_ids`; empty if there are none."""
        width = self._width
        if width == 0:
            return []
        pairs = list(zip(self._other_ids.in_order(), self._other_logprobs.in_order(), strict=True))
        return [tuple(pairs[i : i + width]) for i in range(0, len(pairs), width)]

    @property
    def dropped_tokens(self) -> int:
        """Return the number of tokens before `token_ids`."""
        return self._ids.dropped

    @property
    def dropped_characters(self) -> int:
        """Return the number of characters before `text`."""
        return self._characters.dropped


class ScoredPrompt:
    """All tokens of a prompt, with log-probabilities of all but the first.

    Example:
        >>> prompt = ScoredPrompt()
        >>> prompt.add([(7, None, ()), (8, -0.5, ((8, -0.5),))])
        >>> prompt.tokens[1].logprob
        -0.5
    """

    def __init__(self) -> None:
        """Expect the first token."""
        self._first: int | None = None
        self._others = Tail(None, 0)

    def add(self, scored: Iterable[tuple[int, float | None, Alternatives]]) -> None:
        """Append tokens; only the very first has no log-probability."""
        scored = list(scored)
        if scored and scored[0][1] is None:
            self._first = scored.pop(0)[0]
        if scored:
            ids, logprobs, alternatives = zip(*scored, strict=True)
            self._others.add("", ids, logprobs, alternatives)

    @property
    def tokens(self) -> list[PromptToken]:
        """Return the tokens."""
        if self._first is None:
            return []
        ids, logprobs = self._others.token_ids, self._others.logprobs
        alternatives = self._others.alternatives or [()] * len(ids)
        others = zip(ids, logprobs, alternatives, strict=True)
        return [PromptToken(self._first, None), *(PromptToken(*other) for other in others)]
