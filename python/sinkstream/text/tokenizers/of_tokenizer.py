"""What is made of a tokenizer once, and kept as long as the tokenizer is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from tokenizers import Tokenizer

_V = TypeVar("_V")


class OfTokenizer(Generic[_V]):
    """A function of tokenizers that remembers its values. Any thread may call it."""

    def __init__(self, make: Callable[[Tokenizer], _V]) -> None:
        """Make values with `make`. A value must not hold its tokenizer, which would stay then."""
        self._make = make
        self._values: WeakKeyDictionary[Tokenizer, _V] = WeakKeyDictionary()

    def __call__(self, tokenizer: Tokenizer) -> _V:
        """Return the value; two threads may make it at the same time."""
        value = self._values.get(tokenizer)
        if value is None:
            value = self._values[tokenizer] = self._make(tokenizer)
        return value
