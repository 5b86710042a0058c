"""The sampling defaults that a checkpoint brings along."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sinkstream.checkpoint.fields import Fields

_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 1e4),
    "top_p": (1e-9, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-3, 1e3),
    "presence_penalty": (-1e3, 1e3),
    "frequency_penalty": (-1e3, 1e3),
}
_MAX_TOP_K = 2**31 - 1
_GGUF_NAMES = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


def generation_from_config(values: Mapping[str, Any], where: str) -> dict[str, float | int]:
    """Read the sampling defaults of a generation_config.json; what it does not name stays out.

    Raises:
        CheckpointError: A value is of a wrong type or out of range.
    """
    fields = Fields(values, where)
    found = _read(fields, {name: name for name in (*_RANGES, "top_k")})
    if not fields.flag("do_sample", True):
        found["temperature"] = 0.0  # greedy, said outright
    return found


def generation_from_gguf(metadata: Mapping[str, Any], where: str) -> dict[str, float | int]:
    """Read the sampling defaults of GGUF metadata (`general.sampling.*`)."""
    return _read(Fields(metadata, where, "general.sampling."), _GGUF_NAMES)


def _read(fields: Fields, names: Mapping[str, str]) -> dict[str, float | int]:
    found: dict[str, float | int] = {}
    for ours, theirs in names.items():
        if not fields.has(theirs):
            continue
        if ours == "top_k":
            found[ours] = fields.whole(theirs, 0, _MAX_TOP_K)
        else:
            found[ours] = fields.number(theirs, *_RANGES[ours])
    return found
