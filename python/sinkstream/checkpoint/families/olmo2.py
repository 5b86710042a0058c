"""OLMo 2: norms only after attention and MLP; queries and keys are normalized as a whole."""

from __future__ import annotations

from typing import Any

from sinkstream.checkpoint.families.architecture import (
    LOCAL_BASE,
    WINDOW,
    WINDOW_PATTERN,
    Architecture,
)
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.parts import (
    FOLDER_POST_NORMS,
    POST_NORMS,
    biases_from_config,
    biases_from_gguf,
    ropes_from_gguf,
)
from sinkstream.checkpoint.families.sizes import (
    Sizes,
    rms_norm_from_config,
    rms_norm_from_gguf,
    sizes_from_config,
    sizes_from_gguf,
)
from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES
from sinkstream.checkpoint.families.windows import gguf_window, no_windows
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import Block, DecoderSpec, Norm, RopeSpec

OLMO_NAMES = FOLDER_NAMES.with_names(FOLDER_POST_NORMS)


def olmo_block(sizes: Sizes, norm: Norm, rope: RopeSpec, biases: dict[str, Any]) -> Block:
    """Return the block of OLMo 2 and OLMo 3."""
    attention = sizes.attention(rope, qk_norm="full", **biases)
    return Block(attention, sizes.dense(), norm, **POST_NORMS)


def _from_config(config: Fields) -> DecoderSpec:
    no_windows(config)
    sizes = sizes_from_config(config)
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length)
    block = olmo_block(sizes, rms_norm_from_config(config), rope, biases_from_config(config))
    return sizes.spec("olmo2", block)


def from_gguf(file: GgufDescription) -> DecoderSpec:
    """Read an OLMo 2 file or, if it has windows, an OLMo 3 file."""
    sizes = sizes_from_gguf(file, ("attention.sliding_window",))
    local, full = ropes_from_gguf(file, sizes, "half")
    return sizes.spec(
        "olmo2",
        olmo_block(sizes, rms_norm_from_gguf(file.metadata), local, biases_from_gguf(file)),
        gguf_window(file.metadata, sizes.layers, 4),
        full_rope=full,
    )


FAMILY = Family(
    "olmo2",
    _from_config,
    from_gguf,
    OLMO_NAMES,
    written=Architecture(
        "olmo2", {**WINDOW, **WINDOW_PATTERN, **LOCAL_BASE}, needs=("output",), heads_fill=True
    ),
    models="OLMo 2",
)
