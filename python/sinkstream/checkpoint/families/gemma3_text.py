"""Gemma 3: Gemma 2 with normalized queries and keys; every sixth layer has no window."""

from __future__ import annotations

from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.gemma import (
    GEMMA_NAMES,
    gemma_block,
    gemma_sizes,
    gemma_spec,
    gguf_scalar,
    scalar_of,
)
from sinkstream.checkpoint.families.parts import (
    biases_from_config,
    biases_from_gguf,
    ropes_from_config,
    ropes_from_gguf,
    soft_cap_from_config,
    soft_cap_from_gguf,
)
from sinkstream.checkpoint.families.sizes import (
    rms_norm_from_config,
    rms_norm_from_gguf,
    sizes_from_gguf,
    tie_from_config,
    tie_from_gguf,
)
from sinkstream.checkpoint.families.windows import gguf_window, periodic_windows
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import DecoderSpec

# Configs inside a larger model leave out what has its default.
_DEFAULTS = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
}
_PERIOD, _LOCAL_BASE = 6, 1e4  # of the architecture: GGUF files do not say them
_CAP = "final_logit_softcapping"


def _from_config(config: Fields) -> DecoderSpec:
    config = config.with_defaults(_DEFAULTS)
    config.must_be("attn_logit_softcapping", None)
    sizes, norm, scalar = gemma_sizes(config), rms_norm_from_config(config), scalar_of(config)
    local, full = ropes_from_config(config, sizes, 1e6, _LOCAL_BASE, "rope_local_base_freq")
    biases = biases_from_config(config)
    return gemma_spec(
        "gemma3_text",
        sizes,
        gemma_block(sizes, norm, local, scalar, qk_norm="head", **biases),
        periodic_windows(config, _PERIOD, 4096),
        full_rope=full,
        tie_embeddings=tie_from_config(config, True),
        logit_soft_cap=soft_cap_from_config(config, _CAP),
    )


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file, ("attention.sliding_window", _CAP))
    norm, scalar = rms_norm_from_gguf(file.metadata), gguf_scalar(sizes, 62)
    local, full = ropes_from_gguf(file, sizes, "half", _LOCAL_BASE)
    return gemma_spec(
        "gemma3_text",
        sizes,
        gemma_block(sizes, norm, local, scalar, qk_norm="head", **biases_from_gguf(file)),
        gguf_window(file.metadata, sizes.layers, _PERIOD),
        full_rope=full,
        tie_embeddings=tie_from_gguf(file),
        logit_soft_cap=soft_cap_from_gguf(file.metadata, _CAP),
    )


FAMILY = Family("gemma3_text", _from_config, _from_gguf, GEMMA_NAMES, architectures=("gemma3",))
