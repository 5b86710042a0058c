"""GPT-NeoX and Pythia: layer norms, biases, attention and MLP in parallel."""

from __future__ import annotations

from sinkstream.checkpoint.families.architecture import ALL_BIASES, PARALLEL, Architecture
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.parts import DENSE_MLP
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
from sinkstream.checkpoint.spec import Block, DecoderSpec

_OLD_NAMES = {"partial_rotary_factor": ("rotary_pct",), "rope_theta": ("rotary_emb_base",)}


def _from_config(config: Fields) -> DecoderSpec:
    sizes = sizes_from_config(config, reads=("hidden_act",))
    rope = rope_from_config(
        config.renamed(_OLD_NAMES), sizes.head_dim, sizes.trained_length, partial=0.25
    )
    has_bias = config.flag("attention_bias", True)
    block = Block(
        sizes.attention(rope, qkv_bias=has_bias, output_bias=has_bias),
        sizes.dense(activation=activation_from_config(config, "gelu"), gated=False, bias=True),
        layer_norm_from_config(config, "layer_norm_eps", bias=True),
        parallel=config.flag("use_parallel_residual", True),
    )
    return sizes.spec("gpt_neox", block)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file, reads=("use_parallel_residual",))
    has_bias = "blk.0.attn_qkv.bias" in file.tensors
    block = Block(
        sizes.attention(gguf_rope(file, sizes, "half"), qkv_bias=has_bias, output_bias=has_bias),
        # The files do not say which GELU; nearly all models have the exact one.
        sizes.dense(activation="gelu", gated=False, bias=True),
        layer_norm_from_gguf(file.metadata, bias=True),
        parallel=file.metadata.flag("use_parallel_residual", True),
    )
    return sizes.spec("gpt_neox", block)


FAMILY = Family(
    "gpt_neox",
    _from_config,
    _from_gguf,
    FOLDER_NAMES.with_modules(
        {"o": "attention.dense", **DENSE_MLP},
        {
            "embedding": "gpt_neox.embed_in",
            "final_norm": "gpt_neox.final_layer_norm",
            "output": "embed_out",
        },
        "gpt_neox.layers.{}.",
    )
    .with_qkv("attention.query_key_value", "head")
    .with_unused("*.attention.bias", "*.attention.masked_bias"),
    GGUF_NAMES.with_qkv("attn_qkv"),
    written=Architecture(
        "gptneox",
        PARALLEL,
        biases=ALL_BIASES,
        needs=("output", "layers.0.q_bias", "layers.0.o_bias"),
        heads_fill=True,
    ),
    models="GPT-NeoX, Pythia",
)
