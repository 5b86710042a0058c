"""Gemma 2: norms on both sides of attention and MLP, soft caps, windows in every other layer."""

from __future__ import annotations

from sinkstream.checkpoint.families.architecture import (
    LOGIT_CAP,
    WINDOW,
    Architecture,
    attention_of,
)
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.gemma_parts import (
    GEMMA_NAMES,
    block_from_config,
    block_from_gguf,
    gemma_sizes,
    gemma_spec,
)
from sinkstream.checkpoint.families.parts import soft_cap_from_config, soft_cap_from_gguf
from sinkstream.checkpoint.families.sizes import gguf_rope, sizes_from_gguf
from sinkstream.checkpoint.families.windows import gguf_window, periodic_windows
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import DecoderSpec

_ATTENTION_CAP, _LOGIT_CAP = "attn_logit_softcapping", "final_logit_softcapping"
_GGUF_READS = ("attention.sliding_window", _ATTENTION_CAP, _LOGIT_CAP)


def _from_config(config: Fields) -> DecoderSpec:
    sizes = gemma_sizes(config)
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length)
    cap = soft_cap_from_config(config, _ATTENTION_CAP, 50)
    return gemma_spec(
        "gemma2",
        sizes,
        block_from_config(config, sizes, rope, soft_cap=cap),
        periodic_windows(config, 2, 4096),
        logit_soft_cap=soft_cap_from_config(config, _LOGIT_CAP, 30),
    )


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file, _GGUF_READS)
    rope = gguf_rope(file, sizes, "half")
    cap = soft_cap_from_gguf(file.metadata, _ATTENTION_CAP, 50)
    return gemma_spec(
        "gemma2",
        sizes,
        block_from_gguf(file, sizes, rope, 46, soft_cap=cap),
        gguf_window(file.metadata, sizes.layers, 2, 4096),
        logit_soft_cap=soft_cap_from_gguf(file.metadata, _LOGIT_CAP, 30),
    )


FAMILY = Family(
    "gemma2",
    _from_config,
    _from_gguf,
    GEMMA_NAMES,
    written=Architecture(
        "gemma2",
        {**WINDOW, **LOGIT_CAP, _ATTENTION_CAP: lambda spec: attention_of(spec).soft_cap or None},
        ignores=("output",),
    ),
    models="Gemma 2",
)
