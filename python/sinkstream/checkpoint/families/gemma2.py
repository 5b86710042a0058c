"""Gemma 2: norms on both sides of attention and MLP, soft caps, windows in every other layer."""

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
    soft_cap_from_config,
    soft_cap_from_gguf,
)
from sinkstream.checkpoint.families.sizes import (
    gguf_rope,
    rms_norm_from_config,
    rms_norm_from_gguf,
    sizes_from_gguf,
    tie_from_config,
    tie_from_gguf,
)
from sinkstream.checkpoint.families.windows import gguf_window, periodic_windows
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import DecoderSpec

_ATTENTION_CAP, _LOGIT_CAP = "attn_logit_softcapping", "final_logit_softcapping"
_GGUF_READS = ("attention.sliding_window", _ATTENTION_CAP, _LOGIT_CAP)


def _from_config(config: Fields) -> DecoderSpec:
    sizes = gemma_sizes(config)
    block = gemma_block(
        sizes,
        rms_norm_from_config(config),
        rope_from_config(config, sizes.head_dim, sizes.trained_length),
        scalar_of(config),
        soft_cap=soft_cap_from_config(config, _ATTENTION_CAP, 50),
        **biases_from_config(config),
    )
    return gemma_spec(
        "gemma2",
        sizes,
        block,
        periodic_windows(config, 2, 4096),
        tie_embeddings=tie_from_config(config, True),
        logit_soft_cap=soft_cap_from_config(config, _LOGIT_CAP, 30),
    )


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file, _GGUF_READS)
    block = gemma_block(
        sizes,
        rms_norm_from_gguf(file.metadata),
        gguf_rope(file, sizes, "half"),
        gguf_scalar(sizes, 46),
        soft_cap=soft_cap_from_gguf(file.metadata, _ATTENTION_CAP, 50),
        **biases_from_gguf(file),
    )
    return gemma_spec(
        "gemma2",
        sizes,
        block,
        gguf_window(file.metadata, sizes.layers, 2, 4096),
        tie_embeddings=tie_from_gguf(file),
        logit_soft_cap=soft_cap_from_gguf(file.metadata, _LOGIT_CAP, 30),
    )


FAMILY = Family("gemma2", _from_config, _from_gguf, GEMMA_NAMES)
