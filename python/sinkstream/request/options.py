"""What one stream asks for: its types are checked here, its ranges by the native `validate`."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypedDict

from sinkstream.errors import InvalidArgument
from sinkstream.request.checks import as_bool, as_int
from sinkstream.request.ranges import NUMBERS, WHOLE

_MAX_SINKS = 1 << 53  # keeps it in the native type; whether it fits the window is checked there

# Any of these in a checkpoint says how its makers want it sampled.
_CHOICES = ("temperature", "top_k", "top_p", "min_p")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. Every default is neutral: it changes nothing."""

    temperature: float = 1.0
    """Divides the logits, [0, 100]; 0 takes the likeliest token."""
    top_k: int = 0
    """Keeps the k likeliest tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keeps the likeliest tokens that together have this probability, (0, 1]."""
    min_p: float = 0.0
    """Keeps tokens with at least this share of the likeliest one's probability, [0, 1]."""
    repetition_penalty: float = 1.0
    """Makes tokens that are live in the cache less likely, [0.01, 100]."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of each live token, [-100, 100]."""
    frequency_penalty: float = 0.0
    """The same, once for each live occurrence, [-100, 100]."""

    @classmethod
    def from_checkpoint(cls, generation: Mapping[str, float | int]) -> Sampling:
        """Return the defaults of a checkpoint.

        Args:
            generation: What its generation config names. Where that says nothing about the choice
                of tokens, temperature 0.7, top_p 0.95 and min_p 0.05 are taken. `do_sample: false`,
                said outright, is temperature 0; a config that does not name it says nothing of it.
        """
        values: dict[str, Any] = {"temperature": 0.7, "top_p": 0.95, "min_p": 0.05}
        if any(name in generation for name in _CHOICES):
            values = {}
        known = {known.name for known in fields(cls)}
        values.update((name, value) for name, value in generation.items() if name in known)
        return cls(**values)


class StreamOptions(TypedDict, total=False):
    """The arguments of `Model.stream` that say how to generate, where they are handed on."""

    max_tokens: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    logprobs: int
    seed: int | None
    stream_interval: int
    timeout_s: float | None


DEFAULT_OPTIONS: StreamOptions = {
    "max_tokens": None,
    "stop": (),
    "stop_token_ids": (),
    "ignore_eos": False,
    "temperature": None,
    "top_k": None,
    "top_p": None,
    "min_p": None,
    "repetition_penalty": None,
    "presence_penalty": None,
    "frequency_penalty": None,
    "logit_bias": None,
    "logprobs": 0,
    "seed": None,
    "stream_interval": 1,
    "timeout_s": None,
}


def complete_options(where: str, options: StreamOptions) -> dict[str, Any]:
    """Return `options` with the defaults of those that are not given.

    Raises:
        TypeError: There is no such option.
    """
    for name in options:
        if name not in DEFAULT_OPTIONS:
            raise TypeError(f"{where}: there is no option `{name[:40]}`.")
    return {**DEFAULT_OPTIONS, "sinks": None, **options}


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """One request, complete: nothing is left to a default."""

    prompt: list[int]
    sampling: Sampling
    seed: int
    logit_bias: dict[int, float]
    logprobs: int
    max_tokens: int | None
    stop: list[str]
    stop_token_ids: list[int]
    ignore_eos: bool
    stream_interval: int
    sinks: int | None
    continues_text: bool = False
    """Whether the reply's text is to be read behind the prompt's."""
    timeout_s: float | None = None
    called_at: float = field(default_factory=time.monotonic, compare=False)
    """When it was asked for, as `time.monotonic` tells: `timeout_s` counts from here."""


def make_request(
    prompt: list[int],
    options: Mapping[str, Any],
    *,
    defaults: Sampling,
    vocab_size: int,
    continues_text: bool = False,
    called_at: float | None = None,
) -> StreamRequest:
    """Check the arguments of `Model.stream` and complete them.

    Args:
        prompt: Token ids.
        options: Every other argument of `Model.stream`, by name.
        defaults: Stand in for sampling arguments of None.
        vocab_size: The ids' bound.
        continues_text: Whether the prompt was a text, which the reply's text goes on with.
        called_at: When the caller asked, as `time.monotonic` tells; None is now.

    Raises:
        TypeError: A value has the wrong type.
        InvalidArgument: A whole number is out of range, or a text is not Unicode. Ranges of other
            numbers are checked when the request is submitted.
    """
    given: dict[str, Any] = {
        name: _as_number(name, options[name]) for name in NUMBERS if options[name] is not None
    }
    if options["top_k"] is not None:
        given["top_k"] = _as_whole("top_k", options["top_k"])
    seed, max_tokens, sinks = options["seed"], options["max_tokens"], options["sinks"]
    timeout_s = options["timeout_s"]
    return StreamRequest(
        prompt=prompt,
        sampling=replace(defaults, **given),
        seed=secrets.randbits(64) if seed is None else _as_whole("seed", seed),
        logit_bias=_as_logit_bias(options["logit_bias"], vocab_size),
        logprobs=_as_whole("logprobs", options["logprobs"]),
        max_tokens=None if max_tokens is None else _as_whole("max_tokens", max_tokens),
        stop=_as_stop(options["stop"]),
        stop_token_ids=check_ids("stream", "stop_token_ids", options["stop_token_ids"], vocab_size),
        ignore_eos=as_bool("stream", "ignore_eos", options["ignore_eos"]),
        stream_interval=_as_whole("stream_interval", options["stream_interval"]),
        sinks=None if sinks is None else _as_int("sinks", sinks, 0, _MAX_SINKS),
        continues_text=continues_text,
        timeout_s=None if timeout_s is None else _as_number("timeout_s", timeout_s),
        called_at=time.monotonic() if called_at is None else called_at,
    )


def _as_int(name: str, value: Any, low: int, high: int) -> int:
    return as_int("stream", name, value, low, high)


def _as_whole(name: str, value: Any) -> int:
    return _as_int(name, value, *WHOLE[name])


def _as_number(name: str, value: Any) -> float:
    """Return any float, NaN and infinity included: their sentence names the range."""
    if isinstance(value, bool | str | bytes | bytearray) or not hasattr(value, "__float__"):
        raise TypeError(
            f"stream: `{name}` must be a number, but is of type {type(value).__name__}."
        )
    try:
        return float(value)
    except OverflowError:  # an int beyond every float
        return math.inf if value > 0 else -math.inf


def _as_stop(stop: Any) -> list[str]:
    texts = [stop] if isinstance(stop, str) else stop
    if isinstance(texts, bytes | bytearray | Mapping) or not isinstance(texts, Sequence):
        raise TypeError(
            f"stream: `stop` must be a text or several, but is of type {type(stop).__name__}."
        )
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"stream: `stop` must hold texts, but holds {type(text).__name__}.")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(
                "stream: `stop` must hold Unicode text, but one has a lone surrogate at place "
                f"{error.start}.",
                param="stop",
            ) from None
    return list(texts)


def check_ids(where: str, name: str, ids: Any, vocab_size: int) -> list[int]:
    """Return token ids as a list.

    Raises:
        TypeError: They are no whole numbers.
        InvalidArgument: One is not in [0, vocab_size).
    """
    if isinstance(ids, str | bytes | bytearray | Mapping) or not hasattr(ids, "__iter__"):
        raise TypeError(
            f"{where}: `{name}` must be token ids, but is of type {type(ids).__name__}."
        )
    return [as_int(where, name, token, 0, vocab_size - 1) for token in ids]


def _as_logit_bias(bias: Any, vocab_size: int) -> dict[int, float]:
    if bias is None:
        return {}
    if not isinstance(bias, Mapping):
        raise TypeError(
            "stream: `logit_bias` must map token ids to numbers, but is of type "
            f"{type(bias).__name__}."
        )
    return {
        _as_int("logit_bias", token, 0, vocab_size - 1): _as_number("logit_bias", value)
        for token, value in bias.items()
    }
