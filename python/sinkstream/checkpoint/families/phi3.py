"""Phi-3 and Phi-4: queries, keys and values are one tensor, and so are gate and up."""

from __future__ import annotations

from sinkstream.checkpoint.families.architecture import WINDOW_OR_0, Architecture
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.sizes import (
    gguf_rope,
    rms_norm_from_config,
    rms_norm_from_gguf,
    sizes_from_config,
    sizes_from_gguf,
)
from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES, GGUF_NAMES, Fused
from sinkstream.checkpoint.families.windows import gguf_window, one_window
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import Block, DecoderSpec

_QKV, _GATE_UP = Fused(("q", "k", "v")), Fused(("gate", "up"))
_ORIGINAL = {"original_max_position_embeddings": 4096}


def _from_config(config: Fields) -> DecoderSpec:
    config = config.with_defaults(_ORIGINAL)
    sizes = sizes_from_config(config)
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length, partial=1.0)
    block = Block(sizes.attention(rope), sizes.dense(), rms_norm_from_config(config))
    windows = one_window(config, None)
    return sizes.spec("phi3", block, windows)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file, reads=("attention.sliding_window",))
    rope = gguf_rope(file, sizes, "half")
    block = Block(sizes.attention(rope), sizes.dense(), rms_norm_from_gguf(file.metadata))
    windows = gguf_window(file.metadata, sizes.layers)
    return sizes.spec("phi3", block, windows)


FAMILY = Family(
    "phi3",
    _from_config,
    _from_gguf,
    FOLDER_NAMES.with_fused(
        {"self_attn.qkv_proj.weight": _QKV, "mlp.gate_up_proj.weight": _GATE_UP}
    ),
    GGUF_NAMES.with_fused({"attn_qkv.weight": _QKV, "ffn_up.weight": _GATE_UP}),
    written=Architecture("phi3", WINDOW_OR_0, schemes=("longrope",), heads_fill=True),
    models="Phi-3, Phi-3.5-mini, Phi-4, Phi-4-mini",
    notes="With longrope, the frequencies depend on sinks + window.",
)
