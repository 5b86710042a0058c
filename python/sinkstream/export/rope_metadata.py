"""The rotary scheme of a config.json in GGUF's words."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import default_frequencies, yarn_attention_factor
from sinkstream.checkpoint.spec import RopeSpec


def rope_metadata(
    config: Mapping[str, Any], rope: RopeSpec
) -> tuple[dict[str, Any], tuple[float, ...] | None]:
    """Return the fields after the architecture's prefix, and the divisors of frequencies, if any.

    Args:
        config: The content of config.json, whose scheme is checked already.
        rope: The same scheme.
    """
    fields = Fields(config, "config.json")
    scaling = fields.group("rope_scaling") or fields.group("rope_parameters")
    scaling = scaling or Fields({}, "config.json")
    base = float(scaling.value("rope_theta") or fields.value("rope_theta") or 10_000.0)
    found: dict[str, Any] = {"rope.freq_base": base}
    scheme = scaling.value("rope_type") or scaling.value("type") or "default"
    if scheme == "llama3":
        plain = default_frequencies(base, rope.rotary_dim)
        pairs = zip(plain, rope.inverse_frequencies, strict=True)
        return found, tuple(_float32(frequency / slowed) for frequency, slowed in pairs)
    if scheme == "default":
        return found, None
    trained = fields.value("max_position_embeddings")
    original = scaling.value("original_max_position_embeddings") or trained
    factor = float(scaling.value("factor") or max(trained / original, 1.0))
    found |= {"rope.scaling.type": scheme, "rope.scaling.factor": factor}
    if scheme == "yarn":
        found["rope.scaling.original_context_length"] = original
        found["rope.scaling.attn_factor"] = rope.attention_factor / yarn_attention_factor(factor)
        for name in ("beta_fast", "beta_slow"):
            if scaling.has(name):
                found[f"rope.scaling.yarn_{name}"] = float(scaling.value(name))
    return found, None


def _float32(number: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", number))[0])
