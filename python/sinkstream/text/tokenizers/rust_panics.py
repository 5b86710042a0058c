"""Turns panics of the `tokenizers` package into errors.

It is written in Rust. Where it meets what its authors held impossible, which a damaged
tokenizer.json can bring about, it panics, and that arrives here as a `BaseException`, which would
pass every handler on its way out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError


@contextmanager
def catch_panics(sentence: str) -> Iterator[None]:
    """Raise whatever goes wrong inside as a `CheckpointError` that starts with a sentence."""
    try:
        yield
    except BaseException as error:
        is_panic = type(error).__name__ == "PanicException"  # it cannot be imported
        if is_panic or isinstance(error, Exception):  # the package raises nothing more special
            raise CheckpointError(f"{sentence}: {quoted(str(error))}.") from None
        raise
