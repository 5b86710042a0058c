"""Falcon: one key head for all queries (7B), several (11B, 40B, 180B), or ALiBi (RW)."""

from __future__ import annotations

from dataclasses import replace

from sinkstream.checkpoint.families.alibi import rounded_slopes
from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.parts import DENSE_MLP, ungated_block, with_inner_size
from sinkstream.checkpoint.families.sizes import (
    activation_from_config,
    gguf_rope,
    layer_norm_from_config,
    layer_norm_from_gguf,
    sizes_from_config,
    sizes_from_gguf,
)
from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES, GGUF_NAMES
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import NO_ROPE, DecoderSpec, usual_scale

_OTHER_NAMES = {
    "hidden_act": ("activation",),
    "intermediate_size": ("ffn_hidden_size",),
    "num_attention_heads": ("num_attention_heads", "n_head"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv"),
}
_DEFAULTS = {"max_position_embeddings": 2048}  # older configs do not say


def _from_config(config: Fields) -> DecoderSpec:
    config = with_inner_size(config.renamed(_OTHER_NAMES).with_defaults(_DEFAULTS), 4)
    sizes = sizes_from_config(config, reads=("hidden_act",), tie_embeddings=True)
    is_new = config.flag("new_decoder_architecture", False)
    if not is_new:
        sizes = replace(sizes, kv_heads=1 if config.flag("multi_query", True) else sizes.heads)
    if config.flag("alibi", False):  # whose slopes are scaled like products
        scale = usual_scale(sizes.head_dim)
        rope, slopes = NO_ROPE, tuple(slope * scale for slope in rounded_slopes(sizes.heads))
    else:
        rope, slopes = rope_from_config(config, sizes.head_dim, sizes.trained_length), ()
    bias, activation = config.flag("bias", False), activation_from_config(config, "gelu")
    is_parallel = is_new or config.flag("parallel_attn", True)
    has_two = config.whole("num_ln_in_parallel_attn", 1, 2, 2) == 2 if is_new else not is_parallel
    attention = sizes.attention(rope, slopes=slopes, qkv_bias=bias, output_bias=bias)
    norm = layer_norm_from_config(config, "layer_norm_epsilon", bias=True)
    block = ungated_block(sizes, attention, norm, activation=activation, bias=bias)
    return sizes.spec("falcon", replace(block, mlp_norm=has_two, parallel=is_parallel))


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file)  # the converter knows neither ALiBi nor biases
    attention = sizes.attention(gguf_rope(file, sizes, "half"))
    block = ungated_block(sizes, attention, layer_norm_from_gguf(file.metadata, bias=True))
    has_two = "blk.0.attn_norm_2.weight" in file.tensors
    return sizes.spec("falcon", replace(block, mlp_norm=has_two, parallel=True))


FAMILY = Family(
    "falcon",
    _from_config,
    _from_gguf,
    FOLDER_NAMES.with_modules(
        {"o": "self_attention.dense", **DENSE_MLP},
        {"embedding": "transformer.word_embeddings", "final_norm": "transformer.ln_f"},
        "transformer.h.{}.",
    )
    .with_qkv("self_attention.query_key_value", "kv_head")
    .with_parallel({"attention_norm": "ln_attn", "mlp_norm": "ln_mlp"}),
    GGUF_NAMES.with_qkv("attn_qkv").with_parallel(
        {"attention_norm": "attn_norm_2", "mlp_norm": "attn_norm"}
    ),
    # The field says how the rows of queries, keys and values lie: in the same way in all files.
    written=Architecture("falcon", {"tensor_data_layout": lambda spec: "jploski"}, heads_fill=True),
    models="Falcon 7B, Falcon 11B, Falcon 40B, Falcon 180B, Falcon RW",
    notes="Falcon RW loads as a folder only.",
)
