"""The mixes of block types that llama.cpp's quantizer makes: a type for each matrix of a decoder.

llama.cpp uses the same names for the same types, so it treats one of our files like one of its own.
`general.file_type` holds the name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sinkstream.checkpoint.checkpoint import Storage, block_type, has_blocks
from sinkstream.checkpoint.match_tensors import UNQUANTIZED


@dataclass(frozen=True, slots=True)
class MatrixRole:
    """Where a matrix is in a decoder."""

    part: str
    """`"attn_v"`, `"ffn_down"`, `"ffn_down_exps"`, …; `"token_embd"` or `"output"`."""
    layer: int
    """0 outside layers."""
    cols: int


@dataclass(frozen=True, slots=True)
class Decoder:
    """What the choice of types depends on."""

    family: str
    layers: int
    heads: int
    kv_heads: int
    is_tied: bool
    """Whether the file has no output matrix of its own."""
    experts: int = 0
    """Experts of a layer; 0 without any."""


_Condition = Callable[[int, Decoder], bool]
_Rules = dict[str, tuple[tuple[_Condition, Storage], ...]]


def _always(layer: int, decoder: Decoder) -> bool:
    return True


def _is_sensitive(layer: int, decoder: Decoder) -> bool:
    """Return whether a layer is in the first or last eighth, or every third one between them."""
    eighth = decoder.layers // 8
    return layer < eighth or layer >= 7 * decoder.layers // 8 or (layer - eighth) % 3 == 2


def _shares_values(layer: int, decoder: Decoder) -> bool:
    """Return whether at least four query heads read each value, so that values take few bytes."""
    return decoder.heads >= 4 * decoder.kv_heads


def _is_falcon(layer: int, decoder: Decoder) -> bool:
    return decoder.family == "falcon"


def _both(first: _Condition, second: _Condition) -> _Condition:
    return lambda layer, decoder: first(layer, decoder) and second(layer, decoder)


def _first(count: int) -> _Condition:
    return lambda layer, decoder: layer < count


def _first_share(divisor: int) -> _Condition:
    return lambda layer, decoder: layer < decoder.layers // divisor


_IQ4: _Rules = {
    "attn_v": ((_shares_values, "Q5_K"),),
    "ffn_down": ((_first_share(8), "Q5_K"),),
}

MIXES: dict[str, tuple[Storage, _Rules]] = {
    "Q2_K": (
        "Q2_K",
        {
            "attn_v": ((_shares_values, "Q4_K"), (_always, "Q3_K")),
            "attn_output": ((_is_falcon, "Q2_K"), (_always, "Q3_K")),
            "ffn_down": ((_always, "Q3_K"),),
        },
    ),
    "Q3_K_S": ("Q3_K", {}),
    "Q3_K_M": (
        "Q3_K",
        {
            "attn_v": ((_first(2), "Q5_K"), (_always, "Q4_K")),
            "attn_output": ((_is_falcon, "Q3_K"), (_always, "Q4_K")),
            "ffn_down": (
                (_first_share(16), "Q5_K"),
                (_is_sensitive, "Q4_K"),
                (_is_falcon, "Q3_K"),
                (_always, "Q4_K"),
            ),
        },
    ),
    "Q3_K_L": (
        "Q3_K",
        {
            "attn_v": ((_always, "Q5_K"),),
            **dict.fromkeys(("attn_output", "ffn_down"), ((_is_falcon, "Q4_K"), (_always, "Q5_K"))),
        },
    ),
    "IQ4_XS": ("IQ4_XS", _IQ4),
    "IQ4_NL": ("IQ4_NL", _IQ4),
    "Q4_0": ("Q4_0", {}),
    "Q4_1": ("Q4_1", {}),
    "Q4_K_S": (
        "Q4_K",
        {
            "attn_v": ((_first(4), "Q5_K"),),
            "ffn_down": ((_is_falcon, "Q4_K"), (_first_share(8), "Q5_K")),
        },
    ),
    "Q4_K_M": (
        "Q4_K",
        {
            "attn_v": ((_is_sensitive, "Q6_K"),),
            "ffn_down": (
                (_both(_is_falcon, _first_share(16)), "Q6_K"),
                (_both(_is_falcon, _is_sensitive), "Q5_K"),
                (_is_falcon, "Q4_K"),
                (_is_sensitive, "Q6_K"),
            ),
        },
    ),
    "Q5_0": ("Q5_0", {}),
    "Q5_1": ("Q5_1", {}),
    "Q5_K_S": ("Q5_K", {}),
    "Q5_K_M": ("Q5_K", dict.fromkeys(("attn_v", "ffn_down"), ((_is_sensitive, "Q6_K"),))),
    "Q6_K": ("Q6_K", {}),
    "Q8_0": ("Q8_0", {}),
    "F16": ("F16", {}),
    "BF16": ("BF16", {}),
    "F32": ("F32", {}),
}
"""For each mix: the type of most matrices, and rules for the others by part; the first applies."""


VALUES = ("attn_v", "attn_qkv")
"""The matrices with a layer's values."""
_PARTS = {"attn_qkv": "attn_v", "ffn_down_exps": "ffn_down", "ffn_down_shexp": "ffn_down"}
"""Matrices that follow another matrix's rules: they contain it, or are experts' or shared ones."""

_EIGHT = 8
"""The number of experts for which llama.cpp has rules: Mixtral's, whose attention is small.
Keys and values get 8 bits."""
_MORE_OUTPUT_OF_EIGHT = ("Q2_K", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ4_XS")
"""Mixes that give Q5_K to `attn_output` of a model with eight experts. It has no other rule."""


def is_quantized(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor of a GGUF file is a matrix that a mix gives a type to.

    Vectors, biases, norms, routers and the taps of convolutions keep the type that they have.
    """
    kept = ("_norm.weight", ".ffn_gate_inp.weight", ".shortconv.conv.weight")
    return math.prod(shape[:-1]) > 1 and name.endswith(".weight") and not name.endswith(kept)


def type_of(mix: str, role: MatrixRole, decoder: Decoder) -> Storage:
    """Return the block type of a matrix; F16 if its rows are not even whole blocks of 32."""
    return block_type(_chosen(mix, role, decoder), role.cols) or "F16"


def _chosen(mix: str, role: MatrixRole, decoder: Decoder) -> Storage:
    usual, rules = MIXES[mix]
    if usual in UNQUANTIZED:
        return usual
    if role.part == "output" or (role.part == "token_embd" and decoder.is_tied):
        has_six = usual != "Q8_0" and has_blocks(usual, role.cols)
        return "Q6_K" if has_six and not _is_falcon(0, decoder) else "Q8_0"
    part = _PARTS.get(role.part, role.part)
    if decoder.experts == _EIGHT:
        if part in ("attn_k", "attn_v"):
            return "Q8_0"
        if part == "attn_output":
            return "Q5_K" if mix in _MORE_OUTPUT_OF_EIGHT else usual
    for applies, storage in rules.get(part, ()):
        if applies(role.layer, decoder):
            usual = storage
            break
    if part == "attn_v" and usual in ("Q3_K", "Q4_K") and _is_70b(decoder):
        return "Q5_K"  # a small share of such a model
    return usual


def _is_70b(decoder: Decoder) -> bool:
    if decoder.layers != 80:
        return False
    return decoder.family == "qwen2" or (
        decoder.family == "llama" and decoder.kv_heads < decoder.heads
    )
