"""The rotary scheme of a config.json in GGUF's words."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from sinkstream.checkpoint.families.architecture import base_of, rotating_ropes
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.formats.gguf import DIVISORS, LONG_DIVISORS, SHORT_DIVISORS
from sinkstream.checkpoint.rope import default_frequencies, yarn_attention_factor
from sinkstream.checkpoint.spec import DecoderSpec, RopeSpec

_ORIGINAL = "original_max_position_embeddings"
_LENGTH = "rope.scaling.original_context_length"

Divisors = dict[str, tuple[float, ...]]
"""Tensors of numbers by which frequencies are divided, by name."""


def scheme_of(config: Mapping[str, Any]) -> tuple[str, Fields]:
    """Return the name of a config's rotary scheme, and its fields.

    If layers with windows have a scheme of their own, the scheme of the others is returned.
    """
    fields = Fields(config, "config.json")
    scaling = fields.group("rope_scaling") or fields.group("rope_parameters")
    if scaling is not None and scaling.has("full_attention"):
        scaling = scaling.group("full_attention")
    scaling = scaling or Fields({}, fields.where)
    name = scaling.value("rope_type") or scaling.value("type") or "default"
    return "longrope" if name == "su" else name, scaling


def rope_metadata(
    config: Mapping[str, Any], spec: DecoderSpec, *, has_log_multiplier: bool = False
) -> tuple[dict[str, Any], Divisors]:
    """Return the fields after the architecture's prefix, and the tensors of divisors.

    Args:
        config: The content of config.json, whose scheme has already been checked.
        spec: What it describes.
        has_log_multiplier: Whether llama.cpp reads YaRN's second multiplier for this family.
    """
    local, other = rotating_ropes(spec)
    rope = other or local
    if rope is None:
        return {}, {}
    fields = Fields(config, "config.json")
    scheme, scaling = scheme_of(config)
    factor = float(scaling.value("factor") or 1.0)
    base = _base(fields, scaling, rope, factor if scheme == "linear" else 1.0)
    found: dict[str, Any] = {"rope.freq_base": base, "rope.dimension_count": rope.rotary_dim}
    if fields.has(_ORIGINAL):
        found[_LENGTH] = fields.value(_ORIGINAL)
    if scheme == "linear":
        found |= {"rope.scaling.type": scheme, "rope.scaling.factor": factor}
    if scheme == "yarn":
        original = fields.value(_ORIGINAL) or scaling.value(_ORIGINAL) or spec.trained_length
        found |= {"rope.scaling.type": scheme, _LENGTH: original}
        factor = float(scaling.value("factor") or max(spec.trained_length / original, 1.0))
        found |= _yarn(scaling, rope, factor, has_log_multiplier)
    if scheme == "llama3":
        return found, {DIVISORS: _divisors(base, rope.inverse_frequencies)}
    if rope.long is not None:
        found |= {_LENGTH: rope.long.above, "rope.scaling.attn_factor": rope.attention_factor}
        return found, {
            LONG_DIVISORS: _divisors(base, rope.long.inverse_frequencies),
            SHORT_DIVISORS: _divisors(base, rope.inverse_frequencies),
        }
    return found, {}


def _base(fields: Fields, scaling: Fields, rope: RopeSpec, factor: float) -> float:
    """Return the base, which a config may give under another name or leave to its family."""
    stated = scaling.value("rope_theta") or fields.value("rope_theta")
    unscaled = [frequency * factor for frequency in rope.inverse_frequencies]
    return float(stated or base_of(unscaled))


def _yarn(
    scaling: Fields, rope: RopeSpec, factor: float, has_log_multiplier: bool
) -> dict[str, Any]:
    found = {"rope.scaling.factor": factor}
    usual = yarn_attention_factor(factor)
    if has_log_multiplier and scaling.value("mscale_all_dim"):
        multiplier = float(scaling.value("mscale_all_dim"))
        found["rope.scaling.yarn_log_multiplier"] = multiplier
        usual /= yarn_attention_factor(factor, multiplier)
    found["rope.scaling.attn_factor"] = rope.attention_factor / usual
    for name in ("beta_fast", "beta_slow"):
        if scaling.has(name):
            found[f"rope.scaling.yarn_{name}"] = float(scaling.value(name))
    return found


def _divisors(base: float, frequencies: Sequence[float]) -> tuple[float, ...]:
    plain = default_frequencies(base, 2 * len(frequencies))
    return tuple(
        _float32(frequency / slowed) for frequency, slowed in zip(plain, frequencies, strict=True)
    )


def _float32(number: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", number))[0])
