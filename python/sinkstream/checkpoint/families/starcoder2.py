"""StarCoder2: layer norms, biases, and an MLP without a gate."""

from __future__ import annotations

from sinkstream.checkpoint.families.architecture import ALL_BIASES, WINDOW_OR_0, Architecture
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.sizes import (
    activation_from_config,
    gguf_rope,
    layer_norm_from_config,
    layer_norm_from_gguf,
    sizes_from_config,
    sizes_from_gguf,
)
from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES
from sinkstream.checkpoint.families.windows import gguf_window, one_window
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import Block, DecoderSpec

_WINDOW = 4096  # of all published models; llama.cpp's converter leaves it out


def _from_config(config: Fields) -> DecoderSpec:
    sizes = sizes_from_config(config, reads=("hidden_act",), tie_embeddings=True)
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length)
    activation = activation_from_config(config, "gelu_pytorch_tanh")
    has_bias = config.flag("use_bias", True)
    block = Block(
        sizes.attention(rope, qkv_bias=has_bias, output_bias=has_bias),
        sizes.dense(activation=activation, gated=False, bias=has_bias),
        layer_norm_from_config(config, "norm_epsilon", bias=True),
    )
    windows = one_window(config, None)
    return sizes.spec("starcoder2", block, windows)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file, reads=("attention.sliding_window",))
    has_bias = "blk.0.attn_output.bias" in file.tensors
    block = Block(
        sizes.attention(gguf_rope(file, sizes, "half"), qkv_bias=has_bias, output_bias=has_bias),
        sizes.dense(activation="gelu_tanh", gated=False, bias=has_bias),
        layer_norm_from_gguf(file.metadata, bias=True),
    )
    windows = gguf_window(file.metadata, sizes.layers, default=_WINDOW)
    return sizes.spec("starcoder2", block, windows)


FAMILY = Family(
    "starcoder2",
    _from_config,
    _from_gguf,
    FOLDER_NAMES.with_modules({"up": "mlp.c_fc", "down": "mlp.c_proj"}),
    # llama.cpp applies no window; without the field, files have that of 4,096 here.
    written=Architecture(
        "starcoder2",
        WINDOW_OR_0,
        biases=ALL_BIASES,
        needs=("layers.0.o_bias", "layers.0.down_bias"),
        heads_fill=True,
    ),
    models="StarCoder2",
    notes="Most GGUF files omit the window of 4,096 tokens.",
)
