"""Tokenizers: from each format, and what holds for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from tokenizers import Encoding, Tokenizer

from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError

_V = TypeVar("_V")


class OfTokenizer(Generic[_V]):
    """A function of tokenizers that remembers its values as long as each tokenizer lives.

    Any thread may call it.
    """

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


def encoding_of(tokenizer: Tokenizer, text: str, *, has_offsets: bool = False) -> Encoding:
    """Encode a text as it is, without the GIL: a long one would stop all other threads.

    `Tokenizer.encode` holds it, and returns the same ids. Offsets take as long again, and are all 0
    unless they are asked for.
    """
    encode = tokenizer.encode_batch if has_offsets else tokenizer.encode_batch_fast
    return encode([text], add_special_tokens=False)[0]


@contextmanager
def catch_panics(sentence: str) -> Iterator[None]:
    """Turn any failure in the block into a `CheckpointError` that starts with a sentence.

    The package `tokenizers` is written in Rust. A damaged tokenizer.json can bring it into a state
    that its authors considered impossible. It then panics, which arrives here as a `BaseException`,
    which handlers for `Exception` do not catch.
    """
    try:
        yield
    except BaseException as error:
        is_panic = type(error).__name__ == "PanicException"  # it cannot be imported
        if is_panic or isinstance(error, Exception):  # the package raises no specific types
            raise CheckpointError(f"{sentence}: {quoted(str(error))}.") from None
        raise
