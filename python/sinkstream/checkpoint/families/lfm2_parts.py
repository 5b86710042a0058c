"""What the LFM2 families have in common: which layers convolve, sizes, the names of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sinkstream.checkpoint.families.architecture import Value
from sinkstream.checkpoint.families.family import GgufDescription
from sinkstream.checkpoint.families.sizes import MAX_INTERMEDIATE, MAX_LAYERS
from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES, GGUF_NAMES
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import Attention, Block, DecoderSpec, Recurrent

_MOST_TAPS = 64  # csrc/kernels/convolve.h
_KV_HEADS = "attention.head_count_kv"


def inner_size(config: Fields, size: int) -> int:
    """Return the size of the MLPs, which is the given one only if it is not to be adjusted."""
    if not config.flag("block_auto_adjust_ff_dim", True):
        return size
    size = int(config.number("block_ffn_dim_multiplier", 1e-3, 1e3, 1.0) * int(2 * size / 3))
    multiple = config.whole("block_multiple_of", 1, MAX_INTERMEDIATE, 256)
    return -(-size // multiple) * multiple


def convolution_from_config(config: Fields) -> Recurrent:
    """Return the convolution of a config.json; one flag says whether it has all its biases."""
    has_bias = config.flag("conv_bias", False)
    taps = config.whole("conv_L_cache", 2, _MOST_TAPS, 3)
    return Recurrent("short_conv", taps, conv_bias=has_bias, bias=has_bias)


def convolution_from_gguf(metadata: Fields) -> Recurrent:
    """Return the convolution of GGUF metadata, which has no biases."""
    return Recurrent("short_conv", metadata.whole("shortconv.l_cache", 2, _MOST_TAPS))


def attends_from_config(config: Fields, layers: int) -> list[bool]:
    """Return whether each layer has attention, in a config.json."""
    kinds = config.words("layer_types", layers, ("conv", "full_attention"))
    if kinds is None and config.has("full_attn_idxs"):
        indices = config.indices("full_attn_idxs", layers)
        kinds = ["full_attention" if layer in indices else "conv" for layer in range(layers)]
    attends = [kind != "conv" for kind in kinds or ["full_attention"] * layers]
    if not any(attends):
        raise config.error("layer_types", "contain at least one layer with attention")
    return attends


def attends_from_gguf(file: GgufDescription) -> tuple[list[bool], GgufDescription]:
    """Return whether each layer has attention, and the file with one number of key heads."""
    metadata = file.metadata
    layers = metadata.whole("block_count", 1, MAX_LAYERS)
    listed = metadata.value(_KV_HEADS)
    if not isinstance(listed, list):
        return [True] * layers, file
    attends = [count != 0 for count in listed]
    counts = [count for count in listed if count != 0]
    if len(listed) != layers or not counts or counts != counts[:1] * len(counts):
        rule = f"be a list of {layers} integers: 0 for a convolution, and one number elsewhere"
        raise metadata.error(_KV_HEADS, rule, listed)
    metadata = metadata.without(metadata.name(_KV_HEADS)).with_defaults({_KV_HEADS: counts[0]})
    return attends, replace(file, metadata=metadata)


def with_convolutions(block: Block, convolution: Recurrent, attends: Sequence[bool]) -> list[Block]:
    """Return each layer's block: `block`, or the same with a convolution."""
    convolves = replace(block, mixer=convolution)
    return [block if has_attention else convolves for has_attention in attends]


def _taps(spec: DecoderSpec) -> int | None:
    sizes = (mixer.conv_size for mixer in spec.mixers if isinstance(mixer, Recurrent))
    return next(sizes, None)


GGUF_CONVOLUTIONS: dict[str, Value] = {
    _KV_HEADS: lambda spec: [
        mixer.kv_heads if isinstance(mixer, Attention) else 0 for mixer in spec.mixers
    ],
    "shortconv.l_cache": _taps,
}
"""What llama.cpp's converter writes."""

FOLDER_NAMES_OF_LFM2 = FOLDER_NAMES.with_modules(
    {
        "attention_norm": "operator_norm",
        "conv_in": "conv.in_proj",
        "conv": "conv.conv",
        "conv_out": "conv.out_proj",
        "q_norm": "self_attn.q_layernorm",
        "k_norm": "self_attn.k_layernorm",
        "o": "self_attn.out_proj",
        "mlp_norm": "ffn_norm",
        "gate": "feed_forward.w1",
        "up": "feed_forward.w3",
        "down": "feed_forward.w2",
    },
    {"final_norm": "model.embedding_norm"},
)
GGUF_NAMES_OF_LFM2 = GGUF_NAMES.with_modules(
    {
        "conv_in": "shortconv.in_proj",
        "conv": "shortconv.conv",
        "conv_out": "shortconv.out_proj",
    },
    {"final_norm": "token_embd_norm"},
)
