"""Reads a checkpoint's sampling defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sinkstream.checkpoint.fields import Fields
from sinkstream.request.options import OPTIONS, SAMPLING
from sinkstream.request.value_kinds import Integer, Number

# Our names -> the names in GGUF metadata.
_GGUF_NAMES = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
# generation_config.json uses our names, and may set all of them.
_CONFIG_NAMES = {name: name for name in SAMPLING}


def generation_from_config(values: Mapping[str, Any], where: str) -> dict[str, float | int]:
    """Read the sampling defaults of a generation_config.json; absent fields are left out.

    An explicit `do_sample: false` means temperature 0; if absent, it has no effect.

    Raises:
        CheckpointError: A value has the wrong type, or is outside of the range that streams accept.
    """
    fields = Fields(values, where)
    found = _read(fields, _CONFIG_NAMES)
    if not fields.flag("do_sample", True):
        found["temperature"] = 0.0
    return found


def generation_from_gguf(metadata: Mapping[str, Any], where: str) -> dict[str, float | int]:
    """Read the sampling defaults of GGUF metadata (`general.sampling.*`).

    Raises:
        CheckpointError: A value has the wrong type, or is outside of the range that streams accept.
    """
    return _read(Fields(metadata, where, "general.sampling."), _GGUF_NAMES)


def _read(fields: Fields, names: Mapping[str, str]) -> dict[str, float | int]:
    return {
        ours: _read_number(fields, ours, theirs)
        for ours, theirs in names.items()
        if fields.has(theirs)
    }


def _read_number(fields: Fields, ours: str, theirs: str) -> float | int:
    allowed = OPTIONS[ours].kind
    if isinstance(allowed, Integer):
        return fields.whole(theirs, allowed.low, allowed.high)
    assert isinstance(allowed, Number)
    value = fields.number(theirs, allowed.low, allowed.high)
    if value not in allowed:  # an excluded end of the range
        raise fields.error(theirs, f"be a number in {allowed}")
    return value
