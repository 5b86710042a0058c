"""The sampling defaults that a checkpoint brings along."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sinkstream.checkpoint.fields import Fields
from sinkstream.request.ranges import NUMBERS, WHOLE

# By our names: how a GGUF file calls them.
_GGUF_NAMES = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
# A generation_config.json calls them as we do, and may have them all.
_CONFIG_NAMES = {name: name for name in (*NUMBERS, "top_k")}


def generation_from_config(values: Mapping[str, Any], where: str) -> dict[str, float | int]:
    """Read the sampling defaults of a generation_config.json; what it does not name stays out.

    `do_sample: false`, said outright, is temperature 0; where it is absent, nothing is said.

    Raises:
        CheckpointError: A value is of a wrong type, or no stream could take it.
    """
    fields = Fields(values, where)
    found = _read(fields, _CONFIG_NAMES)
    if not fields.flag("do_sample", True):
        found["temperature"] = 0.0
    return found


def generation_from_gguf(metadata: Mapping[str, Any], where: str) -> dict[str, float | int]:
    """Read the sampling defaults of GGUF metadata (`general.sampling.*`).

    Raises:
        CheckpointError: A value is of a wrong type, or no stream could take it.
    """
    return _read(Fields(metadata, where, "general.sampling."), _GGUF_NAMES)


def _read(fields: Fields, names: Mapping[str, str]) -> dict[str, float | int]:
    return {
        ours: _read_number(fields, ours, theirs)
        for ours, theirs in names.items()
        if fields.has(theirs)
    }


def _read_number(fields: Fields, ours: str, theirs: str) -> float | int:
    if ours in WHOLE:
        return fields.whole(theirs, *WHOLE[ours])
    allowed = NUMBERS[ours]
    value = fields.number(theirs, allowed.low, allowed.high)
    if value not in allowed:  # the end that does not belong to it
        raise fields.error(theirs, f"be a number in {allowed}")
    return value
