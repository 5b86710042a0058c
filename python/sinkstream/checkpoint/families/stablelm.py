"""StableLM: layer norms, and a quarter of each head is rotated."""

from __future__ import annotations

from sinkstream.checkpoint.families.architecture import PARALLEL, Architecture
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.sizes import (
    gguf_rope,
    layer_norm_from_config,
    layer_norm_from_gguf,
    sizes_from_config,
    sizes_from_gguf,
)
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import Block, DecoderSpec
from sinkstream.errors import CheckpointError

_OLD_NAMES = {"partial_rotary_factor": ("rope_pct",), "layer_norm_eps": ("norm_eps",)}
_QK_NORM = "blk.0.attn_q_norm.weight"
_NO_QK_NORM = "QK norms with separate weights for each head are not supported."


def _from_config(config: Fields) -> DecoderSpec:
    config = config.renamed(_OLD_NAMES)
    config.must_be("qk_layernorm", False, _NO_QK_NORM)
    sizes = sizes_from_config(config)
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length, partial=0.25)
    is_parallel = config.flag("use_parallel_residual", False)
    block = Block(
        sizes.attention(rope, qkv_bias=config.flag("use_qkv_bias", False)),
        sizes.dense(),
        layer_norm_from_config(config, "layer_norm_eps", bias=True),
        mlp_norm=not is_parallel,
        parallel=is_parallel,
    )
    return sizes.spec("stablelm", block)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    if _QK_NORM in file.tensors:
        raise CheckpointError(
            f"load: {file.metadata.where} must not have {quoted(_QK_NORM)}. {_NO_QK_NORM}"
        )
    # The field `use_parallel_residual` may be wrong; as in llama.cpp, the norm decides.
    sizes = sizes_from_gguf(file, reads=("use_parallel_residual",))
    has_norm = "blk.0.ffn_norm.weight" in file.tensors
    has_bias = "blk.0.attn_q.bias" in file.tensors
    block = Block(
        sizes.attention(gguf_rope(file, sizes, "half"), qkv_bias=has_bias),
        sizes.dense(),
        layer_norm_from_gguf(file.metadata, bias=True),
        mlp_norm=has_norm,
        parallel=not has_norm,
    )
    return sizes.spec("stablelm", block)


FAMILY = Family(
    "stablelm",
    _from_config,
    _from_gguf,
    written=Architecture("stablelm", PARALLEL, needs=("output",), heads_fill=True),
    models="StableLM 3B, StableLM 2 1.6B",
    notes="No QK norm with separate weights for each head (`qk_layernorm`).",
)
