"""Nemotron-4 and Minitron: layer norms, an MLP of squared ReLU; half of each head is rotated."""

from __future__ import annotations

from sinkstream.checkpoint.families.architecture import ALL_BIASES, NO_SCHEME, Architecture
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.parts import (
    biases_from_config,
    biases_from_gguf,
    ungated_block,
)
from sinkstream.checkpoint.families.sizes import (
    activation_from_config,
    gguf_rope,
    layer_norm_from_config,
    layer_norm_from_gguf,
    sizes_from_config,
    sizes_from_gguf,
)
from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import DecoderSpec


def _from_config(config: Fields) -> DecoderSpec:
    sizes = sizes_from_config(config, reads=("hidden_act",))
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length, partial=0.5)
    block = ungated_block(
        sizes,
        sizes.attention(rope, **biases_from_config(config)),
        layer_norm_from_config(config, "norm_eps", bias=True),
        activation=activation_from_config(config, "relu2"),
        bias=config.flag("mlp_bias", False),
    )
    return sizes.spec("nemotron", block)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file)
    if sizes.heads * sizes.head_dim != sizes.hidden_size:
        # llama.cpp does not load such a file, and its converter takes the rotated part of the
        # hidden size in place of the heads.
        rule = (
            f"be such that {sizes.heads} heads together are as wide as the hidden size, "
            f"{sizes.hidden_size}"
        )
        remedy = "Load the Hugging Face folder."
        raise file.metadata.error("attention.key_length", rule, sizes.head_dim, remedy)
    block = ungated_block(
        sizes,
        sizes.attention(gguf_rope(file, sizes, "half"), **biases_from_gguf(file)),
        layer_norm_from_gguf(file.metadata, bias=True),
        activation="relu2",
        bias="blk.0.ffn_up.bias" in file.tensors,
    )
    return sizes.spec("nemotron", block)


FAMILY = Family(
    "nemotron",
    _from_config,
    _from_gguf,
    # Norms multiply by 1 + weight; GGUF files hold the sum.
    FOLDER_NAMES.with_added(1.0, ("attention_norm", "mlp_norm", "final_norm")),
    written=Architecture(
        "nemotron",
        # The converter writes epsilon under both names.
        {**NO_SCHEME, "attention.layer_norm_rms_epsilon": lambda spec: spec.final_norm.eps},
        biases=ALL_BIASES,
        needs=("output",),
        heads_fill=True,
    ),
    models="Nemotron-4, Nemotron-Mini, Minitron",
    notes="No hybrids (`nemotron_h`). Minitron 8B loads as a folder only, because GGUF requires "
    "that the heads together are as wide as the hidden size.",
)
