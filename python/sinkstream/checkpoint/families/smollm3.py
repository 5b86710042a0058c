"""SmolLM3: llama's layers, of which every fourth does not rotate."""

from __future__ import annotations

from dataclasses import replace

from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.parts import biases_from_config, biases_from_gguf
from sinkstream.checkpoint.families.sizes import (
    MAX_LAYERS,
    gguf_rope,
    rms_norm_from_config,
    rms_norm_from_gguf,
    sizes_from_config,
    sizes_from_gguf,
    with_windows,
)
from sinkstream.checkpoint.families.windows import switched_windows
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import NO_ROPE, Block, DecoderSpec

_PERIOD = 4


def _from_config(config: Fields) -> DecoderSpec:
    sizes = sizes_from_config(config, tie_embeddings=True)
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length, base=2e6)
    block = Block(
        sizes.attention(rope, **biases_from_config(config)),
        sizes.dense(bias=config.flag("mlp_bias", False)),
        rms_norm_from_config(config),
    )
    rotates = _rotating_layers(config, sizes.layers)
    windows = switched_windows(config, [not each for each in rotates], None)
    layers = with_windows(block, windows or (0,) * sizes.layers)
    layers = [
        each if rotated else _unrotated(each) for each, rotated in zip(layers, rotates, strict=True)
    ]
    return sizes.spec("smollm3", block, layers=layers)


def _rotating_layers(config: Fields, layers: int) -> list[bool]:
    name = "no_rope_layers"
    listed = config.value(name)
    if listed is None:
        period = config.whole("no_rope_layer_interval", 1, MAX_LAYERS, _PERIOD)
        return [(layer + 1) % period != 0 for layer in range(layers)]
    is_list = isinstance(listed, list) and len(listed) >= layers
    if not is_list or any(type(each) is not int or each not in (0, 1) for each in listed):
        raise config.error(name, f"be a list of {layers} numbers, each 0 or 1")
    return [each == 1 for each in listed[:layers]]


def _unrotated(block: Block) -> Block:
    return replace(block, mixer=replace(block.attention, rope=NO_ROPE))


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file)
    block = Block(
        sizes.attention(gguf_rope(file, sizes, "interleaved"), **biases_from_gguf(file)),
        sizes.dense(bias="blk.0.ffn_gate.bias" in file.tensors),
        rms_norm_from_gguf(file.metadata),
    )
    # Files do not say which layers rotate.
    layers = [
        block if (layer + 1) % _PERIOD else _unrotated(block) for layer in range(sizes.layers)
    ]
    return sizes.spec("smollm3", block, layers=layers)


FAMILY = Family(
    "smollm3",
    _from_config,
    _from_gguf,
    written=Architecture("smollm3", pairs_adjoin=True),
    models="SmolLM3",
)
