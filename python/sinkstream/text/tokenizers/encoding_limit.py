"""Limits the tokens of texts that are encoded for one request, before they take their memory.

The package `tokenizers` takes 400 bytes for each token of a text while it encodes it, so the digits
of a long text take four hundred times its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from sinkstream.errors import ContextExceeded, InvalidArgument
from sinkstream.request.cancellation import check_wanted
from sinkstream.request.checks import PROMPT, ArgumentName

_SLICE = 1 << 14
"""Characters that are counted at a time: they take at most 26 MB."""
_MOST_BYTES = 4  # of UTF-8 for a character; none of them has more tokens
_MOST_CHARACTERS = 16
"""Characters for each token that a text may have. Prose has four or five. A longer text is refused
at once, since templates handle all of its characters in each step."""
_REMEDY = "Send its end, or load the model with a larger `window`, from which the limit follows."


@dataclass(frozen=True, slots=True)
class _Limit:
    tokens: int
    remedy: str
    refusal: type[InvalidArgument]


_LIMIT: ContextVar[_Limit | None] = ContextVar("encoding_limit", default=None)


@contextmanager
def limiting(
    tokens: int, remedy: str = _REMEDY, refusal: type[InvalidArgument] = ContextExceeded
) -> Iterator[None]:
    """Limit the tokens of each text that the block encodes, and of all messages of a chat.

    Not of all texts together: a history is encoded again and again while it is looked up. An error
    ends with `remedy`, and is a `refusal`: of a text that is no prompt, not the default one.
    """
    token = _LIMIT.set(_Limit(tokens, remedy, refusal))
    try:
        yield
    finally:
        _LIMIT.reset(token)


def check_length(tokenizer: Tokenizer, text: str, argument: ArgumentName = PROMPT) -> None:
    """Refuse a text that is about to be encoded if it is too long for its request.

    A text that may be too long, but is not for its characters, is counted in slices. Each cut may
    add a token or two.

    Raises:
        InvalidArgument: It has too many tokens; ContextExceeded if it is a prompt.
    """
    limit = _LIMIT.get()
    if limit is None or len(text) * _MOST_BYTES <= limit.tokens:
        return
    most = _MOST_CHARACTERS * limit.tokens
    if len(text) > most:
        raise limit.refusal(
            f"{argument} must have at most {most} characters, but has {len(text)}. {limit.remedy}",
            param=argument.name,
        )
    tokens = 0
    for begin in range(0, len(text), _SLICE):
        check_wanted()
        part = text[begin : begin + _SLICE]
        tokens += len(tokenizer.encode_batch_fast([part], add_special_tokens=False)[0])
        if tokens > limit.tokens:
            raise limit.refusal(
                f"{argument} must have at most {limit.tokens} tokens, but the first "
                f"{begin + len(part)} of {len(text)} characters have more. {limit.remedy}",
                param=argument.name,
            )


def check_count(count: int, argument: ArgumentName) -> None:
    """Refuse ids that are about to be decoded if there are too many: some stand for long texts.

    Raises:
        InvalidArgument: There are more than a text may have.
    """
    limit = _LIMIT.get()
    if limit is not None and count > limit.tokens:
        raise InvalidArgument(
            f"{argument} must have at most {limit.tokens} tokens, but has {count}.",
            param=argument.name,
        )


def check_texts(tokenizer: Tokenizer, messages: Iterable[Mapping[str, Any]]) -> None:
    """Refuse chat messages whose texts are too long together, before they are rendered."""
    if _LIMIT.get() is None:
        return
    texts = [text for message in messages for text in _texts_of(message)]
    if texts:
        check_length(tokenizer, texts[0] if len(texts) == 1 else "\n".join(texts))


def _texts_of(value: Any) -> Iterator[str]:
    """Yield the texts in a message: its content, its thoughts, the arguments of its calls."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            if name not in ("role", "type"):
                yield from _texts_of(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts_of(part)
