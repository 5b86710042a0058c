"""Turns panics of the `tokenizers` package into errors.

The package is written in Rust. A damaged tokenizer.json can bring it into a state that its authors
considered impossible. It then panics, which arrives here as a `BaseException`, which handlers for
`Exception` do not catch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError


@contextmanager
def catch_panics(sentence: str) -> Iterator[None]:
    """Turn any failure in the block into a `CheckpointError` that starts with a sentence."""
    try:
        yield
    except BaseException as error:
        is_panic = type(error).__name__ == "PanicException"  # it cannot be imported
        if is_panic or isinstance(error, Exception):  # the package raises no specific types
            raise CheckpointError(f"{sentence}: {quoted(str(error))}.") from None
        raise
