"""EXAONE 4: norms only after attention and MLP; layers without windows do not rotate."""

from __future__ import annotations

from sinkstream.checkpoint.families.architecture import WINDOW, WINDOW_PATTERN, Architecture
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.parts import FOLDER_POST_NORMS, POST_NORMS
from sinkstream.checkpoint.families.sizes import (
    Sizes,
    gguf_rope,
    rms_norm_from_config,
    rms_norm_from_gguf,
    sizes_from_config,
    sizes_from_gguf,
)
from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES
from sinkstream.checkpoint.families.windows import gguf_window, periodic_windows
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import NO_ROPE, Block, DecoderSpec, Norm, RopeSpec

_PERIOD, _WINDOW = 4, 4096
_LAYERS_OF_32B = 64  # the model with windows, of which old GGUF files say nothing


def _block(sizes: Sizes, rope: RopeSpec, norm: Norm) -> Block:
    return Block(sizes.attention(rope, qk_norm="head"), sizes.dense(), norm, **POST_NORMS)


def _from_config(config: Fields) -> DecoderSpec:
    sizes = sizes_from_config(config)
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length)
    return sizes.spec(
        "exaone4",
        _block(sizes, rope, rms_norm_from_config(config)),
        periodic_windows(config, _PERIOD, _WINDOW),
        full_rope=rope if config.is_null("sliding_window") else NO_ROPE,
    )


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file, ("attention.sliding_window",))
    rope = gguf_rope(file, sizes, "half")
    default = _WINDOW if sizes.layers == _LAYERS_OF_32B else 0
    windows = gguf_window(file.metadata, sizes.layers, _PERIOD, default)
    return sizes.spec(
        "exaone4",
        _block(sizes, rope, rms_norm_from_gguf(file.metadata)),
        windows,
        full_rope=NO_ROPE if windows else rope,
    )


FAMILY = Family(
    "exaone4",
    _from_config,
    _from_gguf,
    FOLDER_NAMES.with_names(FOLDER_POST_NORMS),
    written=Architecture(
        "exaone4",
        {**WINDOW, **WINDOW_PATTERN},
        schemes=("llama3",),
        windows_at=_LAYERS_OF_32B,
        heads_fill=True,
    ),
    models="EXAONE 4.0",
    notes="With windows (32B) and without (1.2B).",
)
