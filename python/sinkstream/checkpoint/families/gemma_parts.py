"""What Gemma 2 and Gemma 3 share: scaled embeddings, norms on both sides, and GELU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sinkstream.checkpoint.families.family import GgufDescription
from sinkstream.checkpoint.families.parts import (
    FOLDER_POST_NORMS,
    SANDWICH,
    biases_from_config,
    biases_from_gguf,
)
from sinkstream.checkpoint.families.sizes import (
    Sizes,
    rms_norm_from_config,
    rms_norm_from_gguf,
    sizes_from_config,
)
from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import Block, DecoderSpec, Norm, RopeSpec

# Norms multiply by 1 + weight; GGUF files hold the sum.
GEMMA_NAMES = FOLDER_NAMES.with_names(FOLDER_POST_NORMS).with_added(
    1.0,
    ("attention_norm", "attention_post_norm", "mlp_norm", "mlp_post_norm", "q_norm", "k_norm",
     "final_norm"),
)  # fmt: skip


def gemma_sizes(config: Fields) -> Sizes:
    """Read the sizes of a Gemma's config.json."""
    config.must_be("hidden_activation", "gelu_pytorch_tanh")
    config.must_be("use_bidirectional_attention", False)
    return sizes_from_config(config, 256, reads=("hidden_act",), tie_embeddings=True)


def block_from_config(config: Fields, sizes: Sizes, rope: RopeSpec, **rest: Any) -> Block:
    """Return the block of a config.json; `rest` are other fields of attention."""
    scalar = config.number("query_pre_attn_scalar", 1, 1e6, 256)
    biases = biases_from_config(config)
    return _block(sizes, rms_norm_from_config(config), rope, scalar, **biases, **rest)


def block_from_gguf(
    file: GgufDescription, sizes: Sizes, rope: RopeSpec, layers_of_largest: int, **rest: Any
) -> Block:
    """Return the block of a GGUF file, which does not say the scale of its scores.

    It is that of the head size, except in the largest model, which its number of layers tells.
    """
    is_largest = sizes.layers == layers_of_largest
    scalar = sizes.hidden_size // sizes.heads if is_largest else sizes.head_dim
    biases = biases_from_gguf(file)
    return _block(sizes, rms_norm_from_gguf(file.metadata), rope, scalar, **biases, **rest)


def _block(sizes: Sizes, norm: Norm, rope: RopeSpec, scalar: float, **rest: Any) -> Block:
    attention = sizes.attention(rope, scale=scalar**-0.5, **rest)
    return Block(attention, sizes.dense(activation="gelu_tanh"), norm, **SANDWICH)


def gemma_spec(
    family: str, sizes: Sizes, block: Block, windows: Sequence[int] = (), **rest: Any
) -> DecoderSpec:
    """Return a Gemma; `rest` is as in `Sizes.spec`."""
    scale = math.sqrt(sizes.hidden_size)
    return sizes.spec(family, block, windows, embedding_scale=scale, **rest)
