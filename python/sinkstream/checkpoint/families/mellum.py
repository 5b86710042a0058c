"""Mellum 2: Qwen3's experts; some layers have windows, whose RoPE is not scaled."""

from __future__ import annotations

from sinkstream.checkpoint.families.architecture import (
    LOCAL_BASE,
    WINDOW,
    WINDOW_PATTERN,
    Architecture,
)
from sinkstream.checkpoint.families.experts import (
    COUNTS,
    GGUF_FIELDS,
    SIZE,
    experts_from_config,
    experts_from_gguf,
)
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.parts import (
    biases_from_config,
    biases_from_gguf,
    ropes_from_config,
    ropes_from_gguf,
)
from sinkstream.checkpoint.families.sizes import (
    rms_norm_from_config,
    rms_norm_from_gguf,
    sizes_from_config,
    sizes_from_gguf,
)
from sinkstream.checkpoint.families.windows import gguf_window, listed_windows
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import Block, DecoderSpec


def _from_config(config: Fields) -> DecoderSpec:
    config.all_must_be("mlp_layer_types", "sparse", "Layers of this family have experts.")
    sizes = sizes_from_config(config, 128)
    local, full = ropes_from_config(config, sizes, 500_000.0, 10_000.0)
    attention = sizes.attention(local, qk_norm="head", **biases_from_config(config))
    experts = experts_from_config(config, normalize=config.flag("norm_topk_prob", True))
    block = Block(attention, experts, rms_norm_from_config(config))
    windows = listed_windows(config, [False] * sizes.layers, 1024)
    return sizes.spec("mellum", block, windows, full_rope=full)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file, ("attention.sliding_window", *GGUF_FIELDS))
    local, full = ropes_from_gguf(file, sizes, "half")
    attention = sizes.attention(local, qk_norm="head", **biases_from_gguf(file))
    experts = experts_from_gguf(file, normalize=True)
    block = Block(attention, experts, rms_norm_from_gguf(file.metadata))
    windows = gguf_window(file.metadata, sizes.layers, 4)
    return sizes.spec("mellum", block, windows, full_rope=full)


FAMILY = Family(
    "mellum",
    _from_config,
    _from_gguf,
    written=Architecture(
        "mellum", {**COUNTS, **SIZE, **WINDOW, **WINDOW_PATTERN, **LOCAL_BASE}, needs=("output",)
    ),
    models="Mellum 2",
)
