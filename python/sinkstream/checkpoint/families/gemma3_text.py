"""Gemma 3: Gemma 2 with normalized queries and keys; every sixth layer has no window."""

from __future__ import annotations

from sinkstream.checkpoint.families.architecture import LOCAL_BASE, LOGIT_CAP, WINDOW, Architecture
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.gemma_parts import (
    GEMMA_NAMES,
    block_from_config,
    block_from_gguf,
    gemma_sizes,
    gemma_spec,
)
from sinkstream.checkpoint.families.parts import (
    ropes_from_config,
    ropes_from_gguf,
    soft_cap_from_config,
    soft_cap_from_gguf,
)
from sinkstream.checkpoint.families.sizes import sizes_from_gguf
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
    sizes = gemma_sizes(config)
    local, full = ropes_from_config(config, sizes, 1e6, _LOCAL_BASE, "rope_local_base_freq")
    return gemma_spec(
        "gemma3_text",
        sizes,
        block_from_config(config, sizes, local, qk_norm="head"),
        periodic_windows(config, _PERIOD, 4096),
        full_rope=full,
        logit_soft_cap=soft_cap_from_config(config, _CAP),
    )


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file, ("attention.sliding_window", _CAP))
    local, full = ropes_from_gguf(file, sizes, "half", _LOCAL_BASE)
    return gemma_spec(
        "gemma3_text",
        sizes,
        block_from_gguf(file, sizes, local, 62, qk_norm="head"),
        gguf_window(file.metadata, sizes.layers, _PERIOD),
        full_rope=full,
        logit_soft_cap=soft_cap_from_gguf(file.metadata, _CAP),
    )


FAMILY = Family(
    "gemma3_text",
    _from_config,
    _from_gguf,
    GEMMA_NAMES,
    written=Architecture("gemma3", {**WINDOW, **LOCAL_BASE, **LOGIT_CAP}),
    models="Gemma 3",
    notes="All sizes, text only.",
)
