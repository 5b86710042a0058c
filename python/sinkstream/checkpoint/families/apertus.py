"""Apertus: an MLP without a gate whose activation has trained numbers, xIELU."""

from __future__ import annotations

from sinkstream.checkpoint.families.architecture import Architecture, Value
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.parts import (
    biases_from_config,
    biases_from_gguf,
    ungated_block,
)
from sinkstream.checkpoint.families.sizes import (
    gguf_rope,
    rms_norm_from_config,
    rms_norm_from_gguf,
    sizes_from_config,
    sizes_from_gguf,
    with_xielu,
)
from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import DecoderSpec

_NUMBERS = ("alpha_p", "alpha_n", "beta", "eps")  # in the order of Dense.xielu
_UNTRAINED = (0.203397, -1.050205, 0.5, -1e-6)  # until a folder's tensors are read
_ROPE = {"rope_type": "llama3", "rope_theta": 12_000_000.0, "factor": 8.0,
         "original_max_position_embeddings": 8192, "low_freq_factor": 1.0,
         "high_freq_factor": 4.0}  # fmt: skip


def _from_config(config: Fields) -> DecoderSpec:
    config.must_be("hidden_act", "xielu")
    sizes = sizes_from_config(config, reads=("hidden_act",))
    if not config.has("rope_scaling"):
        config = config.with_defaults({"rope_parameters": _ROPE})
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length, base=12_000_000.0)
    attention = sizes.attention(rope, qk_norm="head", **biases_from_config(config))
    norm = rms_norm_from_config(config)
    block = ungated_block(sizes, attention, norm, activation="xielu", xielu=_UNTRAINED)
    return sizes.spec("apertus", block)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file)
    attention = sizes.attention(
        gguf_rope(file, sizes, "half"), qk_norm="head", **biases_from_gguf(file)
    )
    norm = rms_norm_from_gguf(file.metadata)
    block = ungated_block(sizes, attention, norm, activation="xielu", xielu=_UNTRAINED)
    bare = file.metadata.without_prefix()
    columns = [bare.numbers(f"xielu.{name}", sizes.layers, -1e3, 1e3) for name in _NUMBERS]
    return with_xielu(sizes.spec("apertus", block), list(zip(*columns, strict=True)))


def _column(at: int) -> Value:
    return lambda spec: [spec.blocks[kind].mlp.xielu[at] for kind in spec.block_of_layer]


FAMILY = Family(
    "apertus",
    _from_config,
    _from_gguf,
    FOLDER_NAMES.with_names(
        {"attention_norm": "attention_layernorm.weight", "mlp_norm": "feedforward_layernorm.weight"}
    ).with_unused("model.layers.*.mlp.act_fn.*"),
    xielu=tuple(f"mlp.act_fn.{name}" for name in _NUMBERS),
    written=Architecture(
        "apertus",
        schemes=("llama3",),
        biases=("o",),
        needs=("output",),
        bare_fields={f"xielu.{name}": _column(at) for at, name in enumerate(_NUMBERS)},
    ),
    models="Apertus 8B, Apertus 70B",
)
