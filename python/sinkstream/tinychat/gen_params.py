"""TinyChat's generation parameters, and the options of a request that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sinkstream.errors import InvalidArgument
from sinkstream.request.checks import as_int, as_number
from sinkstream.request.options import StreamOptions

WHERE = "StreamGenerator"
_LARGEST = 2**31 - 1


@dataclass
class GenParams:
    """How to generate, with the original's names and defaults.

    `StreamGenerator` also takes a mapping or an object with these names.
    """

    n_predict: int = 512
    """Maximum number of tokens to generate."""
    temp: float = 0.7
    """Divides the logits; a value below 1e-5 selects the most probable token. `temperature` in
    a mapping or an object means the same."""
    top_k: int = 40
    """Keeps the k most probable tokens; 0 and below keep all."""
    top_p: float = 0.95
    """Keeps the smallest set of most probable tokens whose total probability is at least this.
    Values of 1 and above keep all, and values below 1e-8 only the most probable one."""
    repeat_penalty: float = 1.1
    """Values above 1 make tokens that are live in the cache less likely; values of 1 and below have
    no effect."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit once for each of its live occurrences. The original ignores
    this field."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of each live token. The original ignores this field."""
    logit_bias: Mapping[int, float] | None = None
    """Numbers to add to the logits of some token ids. The original ignores this field."""
    seed: int = -1
    """Makes the draws repeatable; -1 draws a seed. The original ignores this field."""


_NAMES = [entry.name for entry in fields(GenParams)]
# The original has these and does not read them. Most are sizes, which `load` fixes here.
_SIZES = ["n_batch", "n_ctx", "n_keep", "n_parts", "n_threads", "n_vocab", "repeat_last_n"]
_SIZES += ["mirostat_eta", "mirostat_tau"]
# The original has them without effect; values that ask for one are refused.
_OFF: dict[str, float] = {"mirostat": 0, "tfs_z": 1.0, "typical_p": 1.0}


def options_of(params: object) -> StreamOptions:
    """Return the options of a request.

    Raises:
        TypeError: A value, or `params` itself, has the wrong type.
        InvalidArgument: A value is out of range, or a name is unknown.
    """
    values = _values(params)
    for name, off in _OFF.items():
        if (value := values.pop(name, off)) != off:
            raise InvalidArgument(
                f"{WHERE}: `{name}` must be {off}, which turns it off, but is {repr(value)[:40]}. "
                "This option is not supported.",
                param=name,
            )
    for name in _SIZES:
        values.pop(name, None)
    own = GenParams(**values)
    top_p = _number("top_p", own.top_p, -1e9, 1e9)
    is_greedy = _number("temp", own.temp, 0, 100) < 1e-5 or top_p < 1e-8
    options: StreamOptions = {
        "max_tokens": as_int(WHERE, "n_predict", own.n_predict, 0, _LARGEST),
        "temperature": 0.0 if is_greedy else float(own.temp),
        "top_k": max(as_int(WHERE, "top_k", own.top_k, -_LARGEST, _LARGEST), 0),
        "top_p": 1.0 if is_greedy else min(top_p, 1.0),
        "min_p": 0.0,
        "repetition_penalty": max(_number("repeat_penalty", own.repeat_penalty, -1e9, 100), 1.0),
        "frequency_penalty": own.frequency_penalty,
        "presence_penalty": own.presence_penalty,
        "logit_bias": own.logit_bias,
    }
    seed = as_int(WHERE, "seed", own.seed, -1, 2**64 - 1)
    if seed >= 0:
        options["seed"] = seed
    return options


def _values(params: object) -> dict[str, Any]:
    """Return what `params` holds, with `temperature` renamed to `temp`."""
    known = [*_NAMES, "temperature", *_SIZES, *_OFF]
    if isinstance(params, Mapping):
        values = dict(params)
        for name in values:
            if name not in known:
                listed = ", ".join(f"`{each}`" for each in sorted([*_NAMES, "temperature"]))
                raise InvalidArgument(
                    f"{WHERE}: `gen_params` has `{name}`; the supported names are {listed}.",
                    param="gen_params",
                )
    else:
        values = {name: getattr(params, name) for name in known if hasattr(params, name)}
    if not values and not isinstance(params, Mapping):
        raise TypeError(
            f"{WHERE}: `gen_params` must be a GenParams, a mapping or an object with the same "
            f"field names, but is of type {type(params).__name__}."
        )
    if "temperature" in values:
        if "temp" in values:
            raise InvalidArgument(
                f"{WHERE}: `gen_params` must have `temp` or `temperature`, but has both.",
                param="gen_params",
            )
        values["temp"] = values.pop("temperature")
    return values


def _number(name: str, value: object, low: float, high: float) -> float:
    number = as_number(WHERE, name, value)
    if not low <= number <= high:  # NaN is in no range
        raise InvalidArgument(
            f"{WHERE}: `{name}` must be in [{low:g}, {high:g}], but is {number}.", param=name
        )
    return number
