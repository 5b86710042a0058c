"""Hunyuan: query and key heads are normalized after they are rotated."""

from __future__ import annotations

from dataclasses import replace

from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.parts import biases_from_config, biases_from_gguf
from sinkstream.checkpoint.families.sizes import (
    Sizes,
    gguf_rope,
    rms_norm_from_config,
    rms_norm_from_gguf,
    sizes_from_config,
    sizes_from_gguf,
)
from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import Block, DecoderSpec

NAMES = FOLDER_NAMES.with_names(
    {"q_norm": "self_attn.query_layernorm.weight", "k_norm": "self_attn.key_layernorm.weight"}
)
"""Names in folders, also of the family with experts."""
_LENGTH = 256 << 10  # that of training, where config.json says less


def block_from_config(config: Fields) -> tuple[Sizes, Block]:
    """Return the sizes, and a block without experts."""
    config.must_be("use_qk_norm", True)
    config.must_be("use_cla", False)  # layers that share keys
    sizes = sizes_from_config(config)
    scaling = config.group("rope_scaling") or config.group("rope_parameters")
    if scaling is not None and scaling.has("alpha"):
        sizes = replace(sizes, trained_length=_LENGTH)
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length, has_alpha=True)
    attention = sizes.attention(rope, qk_norm="rotated_head", **biases_from_config(config))
    return sizes, Block(attention, sizes.dense(), rms_norm_from_config(config))


def block_from_gguf(file: GgufDescription, *reads: str) -> tuple[Sizes, Block]:
    """Return the sizes, and a block without experts."""
    sizes = sizes_from_gguf(file, reads)
    rope = gguf_rope(file, sizes, "half")
    attention = sizes.attention(rope, qk_norm="rotated_head", **biases_from_gguf(file))
    return sizes, Block(attention, sizes.dense(), rms_norm_from_gguf(file.metadata))


def _from_config(config: Fields) -> DecoderSpec:
    sizes, block = block_from_config(config)
    return sizes.spec("hunyuan_v1_dense", block)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes, block = block_from_gguf(file)
    return sizes.spec("hunyuan_v1_dense", block)


FAMILY = Family(
    "hunyuan_v1_dense",
    _from_config,
    _from_gguf,
    NAMES,
    written=Architecture("hunyuan-dense", schemes=("dynamic",)),
    models="Hunyuan 0.5B, 1.8B, 4B, 7B",
)
