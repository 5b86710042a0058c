"""Limits the tokens of texts that are encoded for one request, before they take their memory.

The package `tokenizers` takes 400 bytes for each token of a text while it encodes it, so the digits
of a long text take four hundred times its size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tokenizers import Tokenizer

from sinkstream.errors import InvalidArgument
from sinkstream.request.checks import PROMPT, ArgumentName

_SLICE = 1 << 14
"""Characters that are counted at a time: they take at most 26 MB."""
_MOST_BYTES = 4  # of UTF-8 for a character; none of them has more tokens


class _Counted:
    """The tokens of one request's texts."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.tokens = 0


_COUNTED: ContextVar[_Counted | None] = ContextVar("encoding_limit", default=None)


@contextmanager
def limiting(tokens: int) -> Iterator[None]:
    """Limit the tokens of all texts that the block encodes together."""
    token = _COUNTED.set(_Counted(tokens))
    try:
        yield
    finally:
        _COUNTED.reset(token)


def check_length(tokenizer: Tokenizer, text: str, argument: ArgumentName = PROMPT) -> None:
    """Refuse a text that is about to be encoded if it is too long for its request.

    A text that may be too long is counted in slices. Each cut may add a token or two.

    Raises:
        InvalidArgument: The texts of the request have too many tokens.
    """
    counted = _COUNTED.get()
    if counted is None or counted.tokens + len(text) * _MOST_BYTES <= counted.limit:
        return
    tokens = counted.tokens
    for begin in range(0, len(text), _SLICE):
        part = text[begin : begin + _SLICE]
        tokens += len(tokenizer.encode_batch_fast([part], add_special_tokens=False)[0])
        if tokens > counted.limit:
            raise InvalidArgument(
                f"{argument} must have at most {counted.limit} tokens that are not known yet, but "
                f"the first {begin + len(part)} of {len(text)} characters have more. Send its end, "
                "or serve the model with a larger `window`, from which the limit follows.",
                param=argument.name,
            )


def count_tokens(tokens: int) -> None:
    """Count what has been encoded for a request."""
    counted = _COUNTED.get()
    if counted is not None:
        counted.tokens += tokens
