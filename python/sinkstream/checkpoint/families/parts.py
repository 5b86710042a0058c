"""What several families describe in the same way: norms, biases, caps, MLPs, two ropes."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from sinkstream.checkpoint.families.family import GgufDescription
from sinkstream.checkpoint.families.sizes import MAX_HIDDEN, Sizes, gguf_rope
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import BASES, default_frequencies, rope_from_config
from sinkstream.checkpoint.spec import Attention, Block, Norm, Pairing, RopeSpec

SANDWICH = MappingProxyType({"attention_post_norm": True, "mlp_post_norm": True})
"""Fields of blocks with norms on both sides of attention and of the MLP."""
POST_NORMS = MappingProxyType({**SANDWICH, "attention_norm": False, "mlp_norm": False})
"""Fields of blocks with norms only after attention and the MLP."""

FOLDER_POST_NORMS = MappingProxyType(
    {
        "attention_post_norm": "post_attention_layernorm.weight",
        "mlp_norm": "pre_feedforward_layernorm.weight",
        "mlp_post_norm": "post_feedforward_layernorm.weight",
    }
)
"""The names of most such norms in folders; GGUF's are in its table."""

DENSE_MLP = MappingProxyType({"up": "mlp.dense_h_to_4h", "down": "mlp.dense_4h_to_h"})
"""The modules of an MLP without a gate in folders of GPT-NeoX and Falcon."""

_MAX_CAP = 1e6


def with_inner_size(config: Fields, ratio: int) -> Fields:
    """Return the fields; an absent intermediate size becomes a multiple of the hidden size."""
    inner = config.whole("hidden_size", 2, MAX_HIDDEN) * ratio
    return config.with_defaults({"intermediate_size": inner})


def ungated_block(sizes: Sizes, attention: Attention, norm: Norm, **mlp: Any) -> Block:
    """Return a block whose MLP has no gate and, unless `mlp` says otherwise, the exact GELU."""
    return Block(attention, sizes.dense(**{"activation": "gelu", "gated": False, **mlp}), norm)


def biases_from_config(config: Fields) -> dict[str, Any]:
    """Return the attention biases that one flag in a config.json enables."""
    has_bias = config.flag("attention_bias", False)
    return {"qkv_bias": has_bias, "output_bias": has_bias}


def biases_from_gguf(file: GgufDescription) -> dict[str, Any]:
    """Return the attention biases for which a GGUF file has tensors."""
    return {
        "qkv_bias": "blk.0.attn_q.bias" in file.tensors,
        "output_bias": "blk.0.attn_output.bias" in file.tensors,
    }


def soft_cap_from_config(config: Fields, name: str, default: float = 0.0) -> float:
    """Return a soft cap from a config.json; 0 if it is null, or absent without a default."""
    if config.is_null(name) or not (config.has(name) or default):
        return 0.0
    return config.number(name, 1e-3, _MAX_CAP, default)


def soft_cap_from_gguf(metadata: Fields, name: str, default: float = 0.0) -> float:
    """Return a soft cap from GGUF metadata, in which 0 means none."""
    return metadata.number(name, 0, _MAX_CAP, default)


def ropes_from_config(
    config: Fields, sizes: Sizes, base: float, local_base: float, local_name: str = "rope_theta"
) -> tuple[RopeSpec, RopeSpec]:
    """Return how layers with windows rotate, and how layers without windows do.

    Args:
        config: The fields.
        sizes: What `sizes_from_config` returned.
        base: The base of layers without windows, if the config does not give it.
        local_base: The base of layers with windows, if the config does not give it.
        local_name: The field for `local_base` in the older layout, where these layers have no
            scheme.
    """
    of_head = config, sizes.head_dim, sizes.trained_length
    return (
        rope_from_config(
            *of_head, layer_type="sliding_attention", base=local_base, base_name=local_name
        ),
        rope_from_config(*of_head, layer_type="full_attention", base=base),
    )


def ropes_from_gguf(
    file: GgufDescription, sizes: Sizes, pairing: Pairing, local_base: float | None = None
) -> tuple[RopeSpec, RopeSpec]:
    """Return how layers with windows rotate (without a scheme), and how the others do.

    Args:
        file: Its metadata and its tensor of divisors.
        sizes: What `sizes_from_gguf` returned.
        pairing: Which dimensions the family's files rotate together.
        local_base: The base of layers with windows, if the file does not give it. If None, the base
            of the others.
    """
    full = gguf_rope(file, sizes, pairing)
    if local_base is None:
        local_base = file.metadata.number("rope.freq_base", *BASES, 10_000.0)
    local_base = file.metadata.number("rope.freq_base_swa", *BASES, local_base)
    return RopeSpec(tuple(default_frequencies(local_base, full.rotary_dim)), pairing), full
