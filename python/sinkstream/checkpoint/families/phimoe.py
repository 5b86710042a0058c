"""Phi-3.5-MoE: layer norms, biases, and a router whose weights do not add up to 1."""

from __future__ import annotations

from dataclasses import replace

from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.families.experts import (
    COUNTS,
    GGUF_FIELDS,
    experts_from_config,
    experts_from_gguf,
)
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.mixtral import EXPERT_NAMES
from sinkstream.checkpoint.families.parts import biases_from_config, biases_from_gguf
from sinkstream.checkpoint.families.sizes import (
    gguf_rope,
    rms_norm_from_gguf,
    sizes_from_config,
    sizes_from_gguf,
)
from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES
from sinkstream.checkpoint.families.windows import one_window
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import Block, DecoderSpec, Norm

# Of Phi-3.5-MoE; GGUF files have neither number.
_JITTER, _MULTIPLIER = 0.01, 1.243163121016122


def _from_config(config: Fields) -> DecoderSpec:
    sizes = sizes_from_config(config)
    rope = rope_from_config(
        config, sizes.head_dim, sizes.trained_length, base=1e6, has_multipliers=True
    )
    jitter = config.number("router_jitter_noise", 0, 1, _JITTER)
    experts = experts_from_config(config, "intermediate_size", score="sparse_mixer", jitter=jitter)
    norm = Norm("layer", config.number("rms_norm_eps", 1e-12, 0.1), bias=True)
    block = Block(sizes.attention(rope, **biases_from_config(config)), experts, norm)
    windows = one_window(config, None)
    return sizes.spec("phimoe", block, windows, logit_bias=config.flag("lm_head_bias", False))


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file, GGUF_FIELDS)
    rope = gguf_rope(file, sizes, "half")
    if rope.long is not None:
        rope = replace(rope, attention_factor=_MULTIPLIER)
    experts = experts_from_gguf(file, sizes.intermediate_size)  # which is told another router
    experts = replace(experts, score="sparse_mixer", jitter=_JITTER)
    norm = Norm("layer", rms_norm_from_gguf(file.metadata).eps, bias=True)
    block = Block(sizes.attention(rope, **biases_from_gguf(file)), experts, norm)
    return sizes.spec("phimoe", block, logit_bias="output.bias" in file.tensors)


FAMILY = Family(
    "phimoe",
    _from_config,
    _from_gguf,
    FOLDER_NAMES.with_names(EXPERT_NAMES),
    # The converter writes epsilon under the name for RMS norms.
    written=Architecture(
        "phimoe",
        {
            **COUNTS,
            "attention.layer_norm_epsilon": lambda spec: None,
            "attention.layer_norm_rms_epsilon": lambda spec: spec.final_norm.eps,
        },
        schemes=("longrope",),
        biases=("o",),
        needs=("output", "output_bias"),
        heads_fill=True,
    ),
    models="Phi-3.5-MoE",
    notes="llama.cpp computes other norms and other weights of experts than those it was trained "
    "with.",
)
