"""Falcon: one key head for all queries (7B), several (11B, 40B, 180B), or ALiBi (RW)."""

from __future__ import annotations

import math
from dataclasses import replace

from sinkstream.checkpoint.families.alibi import alibi_slopes
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.sizes import (
    MAX_HIDDEN,
    activation_from_config,
    gguf_rope,
    layer_norm_from_config,
    layer_norm_from_gguf,
    sizes_from_config,
    sizes_from_gguf,
    tie_from_config,
    tie_from_gguf,
)
from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES, GGUF_NAMES
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import NO_ROPE, Block, DecoderSpec, usual_scale

_OTHER_NAMES = {
    "hidden_act": ("activation",),
    "intermediate_size": ("ffn_hidden_size",),
    "num_attention_heads": ("num_attention_heads", "n_head"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv"),
}
_TRAINED_LENGTH = 2048  # older configs do not say


def _slopes(heads: int, head_dim: int) -> tuple[float, ...]:
    """Return the slopes with which the models were trained: in bfloat16, scaled like products."""
    rounded = []
    for slope in alibi_slopes(heads):
        mantissa, exponent = math.frexp(slope)
        rounded.append(math.ldexp(round(mantissa * 256), exponent - 8))
    return tuple(slope * usual_scale(head_dim) for slope in rounded)


def _from_config(config: Fields) -> DecoderSpec:
    config = config.renamed(_OTHER_NAMES)
    inner = 4 * config.whole("hidden_size", 2, MAX_HIDDEN)
    defaults = {"intermediate_size": inner, "max_position_embeddings": _TRAINED_LENGTH}
    sizes = sizes_from_config(config.with_defaults(defaults), reads=("hidden_act",))
    is_new = config.flag("new_decoder_architecture", False)
    if not is_new:
        kv_heads = 1 if config.flag("multi_query", True) else sizes.heads
        sizes = replace(sizes, kv_heads=kv_heads)
    if config.flag("alibi", False):
        rope, slopes = NO_ROPE, _slopes(sizes.heads, sizes.head_dim)
    else:
        rope, slopes = rope_from_config(config, sizes.head_dim, sizes.trained_length), ()
    has_bias = config.flag("bias", False)
    is_parallel = is_new or config.flag("parallel_attn", True)
    norms = config.whole("num_ln_in_parallel_attn", 1, 2, 2) if is_new else 1
    block = Block(
        sizes.attention(rope, slopes=slopes, qkv_bias=has_bias, output_bias=has_bias),
        sizes.mlp(activation=activation_from_config(config, "gelu"), gated=False, bias=has_bias),
        layer_norm_from_config(config, "layer_norm_epsilon", bias=True),
        mlp_norm=norms == 2 or not is_parallel,
        parallel=is_parallel,
    )
    return sizes.spec("falcon", block, tie_embeddings=tie_from_config(config, True))


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    # The converter knows neither ALiBi nor biases.
    sizes = sizes_from_gguf(file)
    block = Block(
        sizes.attention(gguf_rope(file, sizes, "half")),
        sizes.mlp(activation="gelu", gated=False),
        layer_norm_from_gguf(file.metadata, bias=True),
        mlp_norm="blk.0.attn_norm_2.weight" in file.tensors,
        parallel=True,
    )
    return sizes.spec("falcon", block, tie_embeddings=tie_from_gguf(file))


FAMILY = Family(
    "falcon",
    _from_config,
    _from_gguf,
    FOLDER_NAMES.with_modules(
        {"o": "self_attention.dense", "up": "mlp.dense_h_to_4h", "down": "mlp.dense_4h_to_h"},
        {"embedding": "transformer.word_embeddings", "final_norm": "transformer.ln_f"},
        "transformer.h.{}.",
    )
    .with_qkv("self_attention.query_key_value", "kv_head")
    .with_parallel({"attention_norm": "ln_attn", "mlp_norm": "ln_mlp"}),
    GGUF_NAMES.with_qkv("attn_qkv").with_parallel(
        {"attention_norm": "attn_norm_2", "mlp_norm": "attn_norm"}
    ),
)
