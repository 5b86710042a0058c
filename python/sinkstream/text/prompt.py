"""Turns a prompt into token ids. A prompt is a string, token ids, or chat messages."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.errors import InvalidArgument, warn_caller
from sinkstream.text.chat import encode_chat
from sinkstream.text.messages import is_message
from sinkstream.text.plain_text import PlainEncoder, check_characters
from sinkstream.text.tokenizers.control_tokens import ControlLiterals, control_tokens

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]


def encode_prompt(text: TextFormat, vocab_size: int, prompt: Prompt) -> list[int]:
    """Encode a prompt.

    Args:
        text: The checkpoint's tokenizer and template.
        vocab_size: Rows of the model's embedding.
        prompt: A string, which is always plain text and gets the beginning-of-text token if the
            checkpoint adds one; token ids, which are used unchanged; or chat messages, which go
            through the chat template.

    Returns:
        At least one id, each in [0, vocab_size).

    Raises:
        TypeError: The prompt is of another type.
        InvalidArgument: It is empty, has lone surrogates or ids outside of the vocabulary, or
            needs a tokenizer or template that the checkpoint lacks.

    Example:
        >>> encode_prompt(checkpoint.text, 49152, "Once upon a time")
        [6403, 1980, 253, 655]
    """
    if isinstance(prompt, str):
        return _encode_text(text, prompt)
    no_prompt = isinstance(prompt, bytes | bytearray | Mapping)
    if no_prompt or not (hasattr(prompt, "__getitem__") and hasattr(prompt, "__len__")):
        raise TypeError(
            "stream: `prompt` must be a string, token ids or a list of messages, but is of type "
            f"{type(prompt).__name__}."
        )
    if hasattr(prompt, "shape"):  # an array or a tensor
        prompt = _as_row(prompt)
    if len(prompt) == 0:
        raise InvalidArgument("stream: `prompt` must not be empty.", param="prompt")
    if is_message(prompt[0]):
        return encode_chat(text, prompt)
    return [_check_id(token_id, i, vocab_size) for i, token_id in enumerate(prompt)]


def _as_row(prompt: Any) -> list[Any]:
    """Return the numbers of an array or a tensor as a Python list."""
    if len(prompt.shape) != 1:
        raise InvalidArgument(
            "stream: `prompt` must be one row of token ids, but has shape "
            f"{list(prompt.shape)}. `generate` takes several prompts.",
            param="prompt",
        )
    return list(prompt.tolist())


def _encode_text(text: TextFormat, prompt: str) -> list[int]:
    if text.tokenizer is None:
        raise InvalidArgument(
            "stream: `prompt` must not be a string. The checkpoint has no tokenizer. "
            "Give token ids instead.",
            param="prompt",
        )
    check_characters(prompt, "stream: `prompt`")
    _warn_of_literals(text.tokenizer, prompt)
    ids = text.bos_ids + (PlainEncoder(text.tokenizer).encode(prompt) if prompt else [])
    if not ids:
        raise InvalidArgument(
            "stream: `prompt` must not be empty. The checkpoint has no beginning-of-text token.",
            param="prompt",
        )
    return ids


def _warn_of_literals(tokenizer: Tokenizer, prompt: str) -> None:
    literal = ControlLiterals(control_tokens(tokenizer)).first_in(prompt)
    if literal is not None:
        warn_caller(
            f"stream: `prompt` contains {literal!r}, which is treated as plain text. To pass a "
            "control token, use a list of messages, or token ids."
        )


def _check_id(token_id: Any, index: int, vocab_size: int) -> int:
    try:
        # `operator.index` would accept a tensor [1] as an id.
        if isinstance(token_id, bool) or getattr(token_id, "ndim", 0) > 0:
            raise TypeError
        value = operator.index(token_id)  # any integer type, but nothing else
    except TypeError:
        raise TypeError(
            f"stream: item {index} of `prompt` must be a token id, an integer, but is of type "
            f"{type(token_id).__name__}."
        ) from None
    if not 0 <= value < vocab_size:
        raise InvalidArgument(
            f"stream: item {index} of `prompt` must be a token id in [0, {vocab_size}), "
            f"but is {str(value)[:40]}.",
            param="prompt",
        )
    return value
