"""gpt-oss: experts with biases, a learned sink in each head, and windows in every other layer."""

from __future__ import annotations

from typing import Any

from sinkstream.checkpoint.families.architecture import ALL_BIASES, WINDOW, Architecture
from sinkstream.checkpoint.families.experts import (
    COUNTS,
    GGUF_FIELDS,
    SIZE,
    experts_from_config,
    experts_from_gguf,
)
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.sizes import (
    gguf_rope,
    rms_norm_from_config,
    rms_norm_from_gguf,
    sizes_from_config,
    sizes_from_gguf,
)
from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES, GGUF_NAMES, Fused
from sinkstream.checkpoint.families.windows import gguf_window, periodic_windows
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import Block, DecoderSpec, Dense

_ROPE = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096,
         "truncate": False}  # fmt: skip
_ATTENTION: dict[str, Any] = {"qkv_bias": True, "output_bias": True, "sink_logits": True}
_RULES: dict[str, Any] = {"score": "softmax_of_chosen", "router_bias": True}


def _expert(size: int) -> Dense:
    return Dense(size, activation="clamped_swiglu", bias=True)


def _from_config(config: Fields) -> DecoderSpec:
    for name, value in (("swiglu_limit", 7.0), ("swiglu_alpha", 1.702), ("attention_bias", True)):
        config.must_be(name, value)
    sizes = sizes_from_config(config, 64)
    if not config.has("rope_scaling"):
        config = config.with_defaults({"rope_parameters": _ROPE})
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length, base=150_000.0)
    experts = experts_from_config(config, "intermediate_size", expert=_expert, **_RULES)
    block = Block(sizes.attention(rope, **_ATTENTION), experts, rms_norm_from_config(config))
    return sizes.spec("gpt_oss", block, periodic_windows(config, 2, 128))


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file, ("attention.sliding_window", *GGUF_FIELDS))
    rope = gguf_rope(file, sizes, "half", truncates=False)
    experts = experts_from_gguf(file, sizes.intermediate_size, expert=_expert, **_RULES)
    norm = rms_norm_from_gguf(file.metadata)
    block = Block(sizes.attention(rope, **_ATTENTION), experts, norm)
    return sizes.spec("gpt_oss", block, gguf_window(file.metadata, sizes.layers, 2))


# In folders, rows of gate and up take turns; experts are MXFP4, as published, or transposed.
_PARTS = ("experts.*.gate", "experts.*.up")
_STORED: dict[str, Any] = {"tensors": ("", "_blocks", "_scales"), "may_be_transposed": True}

FAMILY = Family(
    "gpt_oss",
    _from_config,
    _from_gguf,
    folder_names=FOLDER_NAMES.with_modules({"router": "mlp.router"}).with_fused(
        {
            "mlp.experts.gate_up_proj": Fused(_PARTS, "row", **_STORED),
            "mlp.experts.down_proj": Fused(("experts.*.down",), **_STORED),
            "mlp.experts.gate_up_proj_bias": Fused(tuple(f"{part}_bias" for part in _PARTS), "row"),
            "mlp.experts.down_proj_bias": Fused(("experts.*.down_bias",)),
        }
    ),
    gguf_names=GGUF_NAMES.with_names({"mlp_norm": "post_attention_norm.weight"}),
    written=Architecture("gpt-oss", {**COUNTS, **SIZE, **WINDOW}, biases=ALL_BIASES),
    models="gpt-oss-20b, gpt-oss-120b",
    notes="Folders must be MXFP4, as published, or not quantized.",
)
