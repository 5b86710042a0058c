"""Limits the tokens of texts that are encoded for one request, before they take their memory.

The package `tokenizers` takes 400 bytes for each token of a text while it encodes it, so the digits
of a long text take four hundred times its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tokenizers import Tokenizer

from sinkstream.errors import InvalidArgument
from sinkstream.request.abandoned import check_wanted
from sinkstream.request.checks import PROMPT, ArgumentName

_SLICE = 1 << 14
"""Characters that are counted at a time: they take at most 26 MB."""
_MOST_BYTES = 4  # of UTF-8 for a character; none of them has more tokens


_LIMIT: ContextVar[int | None] = ContextVar("encoding_limit", default=None)


@contextmanager
def limiting(tokens: int) -> Iterator[None]:
    """Limit the tokens of each text that the block encodes, and of all messages of a chat.

    Not of all texts together: a history is encoded again and again while it is looked up.
    """
    token = _LIMIT.set(tokens)
    try:
        yield
    finally:
        _LIMIT.reset(token)


def check_length(tokenizer: Tokenizer, text: str, argument: ArgumentName = PROMPT) -> None:
    """Refuse a text that is about to be encoded if it is too long for its request.

    A text that may be too long is counted in slices. Each cut may add a token or two.

    Raises:
        InvalidArgument: It has too many tokens.
    """
    limit = _LIMIT.get()
    if limit is None or len(text) * _MOST_BYTES <= limit:
        return
    tokens = 0
    for begin in range(0, len(text), _SLICE):
        check_wanted()
        part = text[begin : begin + _SLICE]
        tokens += len(tokenizer.encode_batch_fast([part], add_special_tokens=False)[0])
        if tokens > limit:
            raise InvalidArgument(
                f"{argument} must have at most {limit} tokens, but the first {begin + len(part)} "
                f"of {len(text)} characters have more. Send its end, or serve the model with a "
                "larger `window`, from which the limit follows.",
                param=argument.name,
            )


def check_messages(tokenizer: Tokenizer, messages: Iterable[Mapping[str, Any]]) -> None:
    """Refuse chat messages whose texts are too long together, before they are rendered."""
    if _LIMIT.get() is None:
        return
    texts = [text for message in messages for text in _texts_of(message.get("content"))]
    if texts:
        check_length(tokenizer, texts[0] if len(texts) == 1 else "\n".join(texts))


def _texts_of(content: Any) -> Iterator[str]:
    """Yield the texts of a message: its content, or those of the parts in it."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, Mapping) and isinstance(text := part.get("text"), str):
                yield text
