"""Reads a checkpoint's sampling defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sinkstream.checkpoint.fields import Fields
from sinkstream.request.options import OPTIONS, SAME_AS, SAMPLING
from sinkstream.request.value_kinds import Integer, Number

# Our names -> the names in GGUF metadata.
_GGUF_NAMES = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
# Below these, a number has no nearest meaning: a penalty of 0.01 would do the opposite of one.
_LOWEST = {"temperature": 0.0, "top_p": 0.0, "repetition_penalty": math.ulp(0.0)}
# generation_config.json uses our names, and may set all of them.
_CONFIG_NAMES = {name: name for name in SAMPLING}


def generation_from_config(values: Mapping[str, Any], where: str) -> dict[str, float | int]:
    """Read the sampling defaults of a generation_config.json; absent fields are left out.

    `do_sample: false` sets the temperature to 0. Values that are out of range or of the wrong type
    cause warnings.
    """
    fields = Fields(values, where)
    found = _read(fields, _CONFIG_NAMES)
    samples = fields.value("do_sample")
    if samples is True and found.get("temperature") == 0:
        fields.warn("temperature", "be above 0 if `do_sample` is true", "Decoding will be greedy.")
    if samples is False:
        found["temperature"] = 0.0
    elif samples not in (None, True):
        fields.warn("do_sample", "be true or false", "It is ignored.")
    return found


def generation_from_gguf(metadata: Mapping[str, Any], where: str) -> dict[str, float | int]:
    """Read the sampling defaults of GGUF metadata (`general.sampling.*`).

    Values that are out of range or of the wrong type cause warnings.
    """
    return _read(Fields(metadata, where, "general.sampling."), _GGUF_NAMES)


def sampling_metadata(generation: Mapping[str, float | int]) -> dict[str, float | int]:
    """Return sampling defaults as GGUF metadata; values without a key in GGUF are left out."""
    return {
        f"general.sampling.{_GGUF_NAMES[name]}": value
        for name, value in generation.items()
        if name in _GGUF_NAMES
    }


def _read(fields: Fields, names: Mapping[str, str]) -> dict[str, float | int]:
    found = {ours: _usable(fields, ours, theirs) for ours, theirs in names.items()}
    return {ours: value for ours, value in found.items() if value is not None}


def _usable(fields: Fields, ours: str, theirs: str) -> float | int | None:
    """Return the number that a field means, or None; warn if it is outside a stream's range.

    Most numbers out of range mean the nearest one: -1 as `top_k` keeps all tokens.
    """
    value = fields.value(theirs)
    if value is None:
        return None
    kind = OPTIONS[ours].kind
    assert isinstance(kind, Integer | Number)
    rule = f"be {'an integer' if isinstance(kind, Integer) else 'a number'} in {kind}"
    if not _is_number(value, isinstance(kind, Integer)) or value < _LOWEST.get(ours, value):
        fields.warn(theirs, rule, "It is ignored.")
        return None
    if isinstance(kind, Number) and kind.is_open and value <= kind.low:
        nearest: float | int = SAME_AS[ours][kind.low]
    else:
        nearest = min(max(value, kind.low), kind.high)
    if nearest != value:
        fields.warn(theirs, rule, f"It is read as {nearest:g}.")
    return int(nearest) if isinstance(kind, Integer) else float(nearest)


def _is_number(value: Any, must_be_whole: bool) -> bool:
    if isinstance(value, float):
        return value.is_integer() if must_be_whole else math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)
