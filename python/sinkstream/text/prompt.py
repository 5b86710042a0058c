"""Turns a prompt into token ids: a string, or ids. Chat messages: `conversation_formats.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from tokenizers import Tokenizer

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.errors import InvalidArgument, warn_caller
from sinkstream.request.checks import ArgumentName, as_ids
from sinkstream.request.template_variables import KWARGS, TemplateVariables, Thinking
from sinkstream.request.tools import Tools
from sinkstream.text.messages import Message, is_message
from sinkstream.text.plain_text import check_characters, plain_encoder
from sinkstream.text.tokenizers.control_tokens import control_literals
from sinkstream.text.tokenizers.encoding_limit import limiting


class IdArray(Protocol):
    """Token ids in a NumPy array or a torch tensor."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return [tokens], or [prompts, tokens]."""
        ...

    def __iter__(self) -> Iterator[Any]: ...

    def tolist(self) -> Any:
        """Return the ids as a list."""
        ...


PREDICTION = ArgumentName("stream", "prediction")
_MOST_PREDICTED = 1 << 17  # tokens: kMaxPrediction of csrc/sampling/params.h
Prompt = str | Sequence[int] | Sequence[Message] | IdArray


class EncodedText(list[int]):
    """What `encode_prompt` has returned for a string; as a prompt, it is that string."""


def is_chat(prompt: Any) -> bool:
    """Return whether a prompt is messages."""
    if isinstance(prompt, str | bytes | bytearray | Mapping) or hasattr(prompt, "shape"):
        return False
    has_items = hasattr(prompt, "__getitem__") and hasattr(prompt, "__len__")
    return has_items and len(prompt) > 0 and is_message(prompt[0])


def check_not_chat(thinking: Thinking, tools: Tools | None) -> None:
    """Refuse what a prompt that is not chat messages cannot have.

    Raises:
        InvalidArgument: `thinking` or `tools` is given.
    """
    if isinstance(thinking, TemplateVariables):
        raise InvalidArgument(
            f"stream: `{KWARGS}` must be empty, because `prompt` is not a list of messages.",
            param=KWARGS,
        )
    if thinking is not None:
        raise InvalidArgument(
            f"stream: `thinking` must be None, but is {thinking!r}: `prompt` is not a list of "
            "messages.",
            param="thinking",
        )
    if tools is not None:
        raise InvalidArgument(
            "stream: `tools` must be empty, because `prompt` is not a list of messages.",
            param="tools",
        )


def encode_prompt(text: TextFormat, vocab_size: int, prompt: Prompt) -> list[int]:
    """Encode a prompt that is not chat messages.

    Args:
        text: The checkpoint's tokenizer.
        vocab_size: Rows of the model's embedding.
        prompt: A string, which is always plain text and gets the beginning-of-text token if the
            checkpoint adds one; or token ids, which are used unchanged. An `EncodedText` is
            returned as it is.

    Returns:
        At least one id, each in [0, vocab_size).

    Raises:
        TypeError: The prompt is none of these.
        InvalidArgument: It is empty, has lone surrogates or ids outside the vocabulary, or needs a
            tokenizer that the checkpoint lacks.

    Example:
        >>> encode_prompt(checkpoint.text, 49152, "Once upon a time")
        [6403, 1980, 253, 655]
    """
    if isinstance(prompt, str):
        return _encode_text(text, prompt)
    if isinstance(prompt, EncodedText):
        return prompt
    no_prompt = isinstance(prompt, bytes | bytearray | Mapping)
    if no_prompt or not (hasattr(prompt, "__getitem__") and hasattr(prompt, "__len__")):
        raise TypeError(
            "stream: `prompt` must be a string, token ids or a list of messages, but is of type "
            f"{type(prompt).__name__}."
            + " Wrap one message in a list."
            * isinstance(prompt, Mapping)
        )
    if hasattr(prompt, "shape"):  # an array or a tensor
        prompt = _as_row(prompt)
    if len(prompt) == 0:
        raise InvalidArgument("stream: `prompt` must not be empty.", param="prompt")
    return as_ids("stream", "prompt", list(prompt), vocab_size)


def encode_prediction(text: TextFormat, prediction: str) -> list[int]:
    """Encode what a reply probably says.

    Raises:
        InvalidArgument: It has lone surrogates or too many tokens, or there is no tokenizer.
    """
    if text.tokenizer is None:
        raise InvalidArgument(
            "stream: `prediction` must not be a string, because the checkpoint has no tokenizer. "
            "Pass token ids instead.",
            param="prediction",
        )
    check_characters(prediction, PREDICTION)
    if not prediction:
        return []
    with limiting(_MOST_PREDICTED, "Predict a part of the reply.", InvalidArgument):
        return plain_encoder(text.tokenizer).encode(prediction, argument=PREDICTION)


def _as_row(prompt: Any) -> list[Any]:
    """Return the numbers of an array or a tensor as a Python list."""
    if len(prompt.shape) != 1:
        raise InvalidArgument(
            "stream: `prompt` must be one row of token ids, but has shape "
            f"{list(prompt.shape)}. `generate` takes several prompts.",
            param="prompt",
        )
    return list(prompt.tolist())


def _encode_text(text: TextFormat, prompt: str) -> EncodedText:
    if text.tokenizer is None:
        raise InvalidArgument(
            "stream: `prompt` must not be a string, because the checkpoint has no tokenizer. "
            "Pass token ids instead.",
            param="prompt",
        )
    check_characters(prompt, "stream: `prompt`")
    _warn_of_literals(text.tokenizer, prompt)
    ids = EncodedText(text.bos_ids)
    ids += plain_encoder(text.tokenizer).encode(prompt) if prompt else []
    if not ids:
        raise InvalidArgument(
            "stream: `prompt` must not be empty, because the checkpoint has no beginning-of-text "
            "token.",
            param="prompt",
        )
    return ids


def _warn_of_literals(tokenizer: Tokenizer, prompt: str) -> None:
    literal = control_literals(tokenizer).first_in(prompt)
    if literal is not None:
        warn_caller(
            f"stream: `prompt` contains {literal!r}, which is treated as plain text. To pass a "
            "control token, use a list of messages, or token ids."
        )


def is_list_of_prompts(prompt: Any) -> bool:
    """Return whether `prompt` is a list of strings, rows of ids or lists of messages, or empty."""
    if hasattr(prompt, "ndim"):  # an array or a tensor
        return bool(prompt.ndim == 2)
    if isinstance(prompt, str | bytes) or not isinstance(prompt, Sequence):
        return False
    if not prompt:
        return True
    first = prompt[0]
    if hasattr(first, "ndim"):
        return bool(first.ndim > 0)  # a row; a number has none
    return isinstance(first, Sequence) and not isinstance(first, bytes)


def check_prompts(prompts: Any) -> None:
    """Refuse what is one prompt, or none.

    Raises:
        TypeError: It is not an iterable of prompts.
    """
    first = prompts[0] if isinstance(prompts, Sequence) and prompts else None
    is_one = isinstance(prompts, str | bytes | Mapping) or getattr(prompts, "ndim", 2) != 2
    if is_one or isinstance(first, int | Mapping) or not isinstance(prompts, Iterable):
        raise TypeError(
            "generate_many: `prompts` must be an iterable of prompts, as in `[prompt]`, but is of "
            f"type {type(prompts).__name__}."
        )
