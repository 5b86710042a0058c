"""A mix gives every matrix the type that llama.cpp's quantizer gives it."""

from __future__ import annotations

import pytest

from sinkstream.checkpoint.describe import FILE_TYPES
from sinkstream.export.quantized_mixes import MIXES, Decoder, MatrixRole, is_quantized, type_of

PARTS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
_SENSITIVE = (0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 26, 27, 28, 29)
# What `llama_model_quantize` of llama-cpp-python 0.3.36 made of SmolLM2 in F16: the type of most
# matrices in layers, then of those parts that differ, in all layers or in some. The embedding,
# which is the output matrix too, was Q8_0 in every file.
SMOLLM2: dict[str, tuple[str, dict[str, tuple[str, dict[str, tuple[int, ...]]]]]] = {
    "Q2_K": ("Q4_0", {"ffn_down": ("Q3_K", {})}),
    "Q3_K_S": ("Q4_0", {"ffn_down": ("Q3_K", {})}),
    "Q3_K_M": (
        "Q4_0",
        {
            "attn_v": ("Q5_0", {"Q5_1": (0, 1)}),
            "attn_output": ("Q5_0", {}),
            "ffn_down": ("Q4_K", {"Q5_K": (0,)}),
        },
    ),
    "Q3_K_L": (
        "Q4_0",
        {"attn_v": ("Q5_1", {}), "attn_output": ("Q5_1", {}), "ffn_down": ("Q5_K", {})},
    ),
    "IQ4_XS": ("IQ4_NL", {"ffn_down": ("IQ4_XS", {"Q5_K": (0, 1, 2)})}),
    "IQ4_NL": ("IQ4_NL", {"ffn_down": ("IQ4_NL", {"Q5_K": (0, 1, 2)})}),
    "Q4_0": ("Q4_0", {}),
    "Q4_1": ("Q4_1", {}),
    "Q4_K_S": (
        "Q5_0",
        {
            "attn_v": ("Q5_0", {"Q5_1": (0, 1, 2, 3)}),
            "ffn_down": ("Q4_K", {"Q5_K": (0, 1, 2)}),
        },
    ),
    "Q4_K_M": (
        "Q5_0",
        {
            "attn_v": ("Q5_0", {"Q8_0": _SENSITIVE}),
            "ffn_down": ("Q4_K", {"Q6_K": _SENSITIVE}),
        },
    ),
    "Q5_0": ("Q5_0", {}),
    "Q5_1": ("Q5_1", {}),
    "Q5_K_S": ("Q5_1", {"ffn_down": ("Q5_K", {})}),
    "Q5_K_M": (
        "Q5_1",
        {
            "attn_v": ("Q5_1", {"Q8_0": _SENSITIVE}),
            "ffn_down": ("Q5_K", {"Q6_K": _SENSITIVE}),
        },
    ),
    "Q6_K": ("Q8_0", {"ffn_down": ("Q6_K", {})}),
    "Q8_0": ("Q8_0", {}),
}


def of_llama_cpp(mix: str, part: str, layer: int) -> str:
    usual, parts = SMOLLM2[mix]
    kind, others = parts.get(part, (usual, {}))
    return next((other for other, layers in others.items() if layer in layers), kind)


@pytest.mark.parametrize("mix", SMOLLM2)
def test_every_matrix_of_smollm2_gets_the_type_that_llama_cpp_gives_it(mix: str) -> None:
    decoder = Decoder("llama", layers=30, heads=9, kv_heads=3, is_tied=True)
    for layer in range(30):
        for part in PARTS:
            role = MatrixRole(part, layer, cols=1536 if part == "ffn_down" else 576)
            assert type_of(mix, role, decoder) == of_llama_cpp(mix, part, layer), role
    assert type_of(mix, MatrixRole("token_embd", 0, 576), decoder) == "Q8_0"


# Of the shape 2048/8192 with an output matrix of its own.
@pytest.mark.parametrize(
    ("mix", "part", "expected"),
    [
        ("Q4_0", "output", "Q6_K"),
        ("Q4_0", "token_embd", "Q4_0"),
        ("Q4_K_M", "output", "Q6_K"),
        ("Q4_K_M", "token_embd", "Q4_K"),
        ("Q8_0", "output", "Q8_0"),
        ("IQ4_XS", "attn_v", "Q5_K"),  # four query heads to each value
        ("Q2_K", "attn_v", "Q4_K"),
        ("Q4_K_M", "attn_q", "Q4_K"),
    ],
)
def test_a_model_with_whole_blocks_needs_no_fallback(mix: str, part: str, expected: str) -> None:
    decoder = Decoder("llama", layers=16, heads=32, kv_heads=8, is_tied=False)
    assert type_of(mix, MatrixRole(part, 3, 2048), decoder) == expected


_SOME = (2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31)
# What `llama_model_quantize` of llama-cpp-python 0.3.36 made of a Falcon of 32 layers and whole
# blocks, whose four query heads share their values: for each part the type of most layers, and
# those of the others.
FALCON: dict[str, dict[str, tuple[str, dict[str, tuple[int, ...]]]]] = {
    "Q2_K": {"attn_qkv": ("Q4_K", {}), "attn_output": ("Q2_K", {}), "ffn_down": ("Q3_K", {})},
    "Q3_K_M": {
        "attn_qkv": ("Q4_K", {"Q5_K": (0, 1)}),
        "attn_output": ("Q3_K", {}),
        "ffn_down": ("Q3_K", {"Q5_K": (0, 1), "Q4_K": _SOME}),
    },
    "Q3_K_L": {"attn_qkv": ("Q5_K", {}), "attn_output": ("Q4_K", {}), "ffn_down": ("Q4_K", {})},
    "Q4_K_S": {"attn_qkv": ("Q4_K", {"Q5_K": (0, 1, 2, 3)}), "ffn_down": ("Q4_K", {})},
    "Q4_K_M": {
        "attn_qkv": ("Q4_K", {"Q6_K": (0, 1, *_SOME)}),
        "attn_output": ("Q4_K", {}),
        "ffn_down": ("Q4_K", {"Q6_K": (0, 1), "Q5_K": _SOME}),
    },
    "Q5_K_M": {
        "attn_qkv": ("Q5_K", {"Q6_K": (0, 1, *_SOME)}),
        "ffn_down": ("Q5_K", {"Q6_K": (0, 1, *_SOME)}),
    },
    "IQ4_XS": {"attn_qkv": ("Q5_K", {}), "ffn_down": ("IQ4_XS", {"Q5_K": (0, 1, 2, 3)})},
}


@pytest.mark.parametrize("mix", FALCON)
def test_falcon_gets_the_types_that_llama_cpp_gives_it(mix: str) -> None:
    decoder = Decoder("falcon", layers=32, heads=4, kv_heads=1, is_tied=True)
    for part, (usual, others) in FALCON[mix].items():
        for layer in range(32):
            expected = next((kind for kind, held in others.items() if layer in held), usual)
            assert type_of(mix, MatrixRole(part, layer, 256), decoder) == expected, (part, layer)
    assert type_of(mix, MatrixRole("token_embd", 0, 256), decoder) == "Q8_0"


# What a dry run of llama.cpp's quantizer says of models with experts, whole blocks and eight query
# heads to two key heads: Mixtral, with eight experts and 32 layers, and Qwen3-MoE, with twelve and
# 24. The shared expert of Qwen2-MoE gets the types of its experts.
_LESS_OF_MIXTRAL = (4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20, 22, 23, 25, 26)
_LESS_OF_QWEN3 = (3, 4, 6, 7, 9, 10, 12, 13, 15, 16, 18, 19)
MIXTRAL: dict[str, tuple[str, dict[str, tuple[str, dict[str, tuple[int, ...]]]]]] = {
    "Q2_K": ("Q2_K", {"attn_output": ("Q5_K", {}), "ffn_down": ("Q3_K", {})}),
    "Q3_K_S": ("Q3_K", {"attn_output": ("Q5_K", {})}),
    "Q3_K_M": ("Q3_K", {"attn_output": ("Q5_K", {}), "ffn_down": ("Q4_K", {"Q5_K": (0, 1)})}),
    "Q3_K_L": ("Q3_K", {"ffn_down": ("Q5_K", {})}),
    "IQ4_XS": (
        "IQ4_XS",
        {"attn_output": ("Q5_K", {}), "ffn_down": ("IQ4_XS", {"Q5_K": (0, 1, 2, 3)})},
    ),
    "IQ4_NL": (
        "IQ4_NL",
        {"attn_output": ("Q5_K", {}), "ffn_down": ("IQ4_NL", {"Q5_K": (0, 1, 2, 3)})},
    ),
    "Q4_0": ("Q4_0", {}),
    "Q4_1": ("Q4_1", {}),
    "Q4_K_S": (
        "Q4_K",
        {"attn_output": ("Q5_K", {}), "ffn_down": ("Q4_K", {"Q5_K": (0, 1, 2, 3)})},
    ),
    "Q4_K_M": (
        "Q4_K",
        {"attn_output": ("Q5_K", {}), "ffn_down": ("Q6_K", {"Q4_K": _LESS_OF_MIXTRAL})},
    ),
    "Q5_0": ("Q5_0", {}),
    "Q5_1": ("Q5_1", {}),
    "Q5_K_S": ("Q5_K", {}),
    "Q5_K_M": ("Q5_K", {"ffn_down": ("Q6_K", {"Q5_K": _LESS_OF_MIXTRAL})}),
    "Q6_K": ("Q6_K", {}),
    "Q8_0": ("Q8_0", {}),
}
QWEN3_MOE: dict[str, tuple[str, dict[str, tuple[str, dict[str, tuple[int, ...]]]]]] = {
    "Q2_K": (
        "Q2_K",
        {"attn_v": ("Q4_K", {}), "attn_output": ("Q3_K", {}), "ffn_down": ("Q3_K", {})},
    ),
    "Q3_K_S": ("Q3_K", {}),
    "Q3_K_M": (
        "Q3_K",
        {
            "attn_v": ("Q4_K", {"Q5_K": (0, 1)}),
            "attn_output": ("Q4_K", {}),
            "ffn_down": ("Q4_K", {"Q5_K": (0,)}),
        },
    ),
    "Q3_K_L": ("Q3_K", dict.fromkeys(("attn_v", "attn_output", "ffn_down"), ("Q5_K", {}))),
    "IQ4_XS": (
        "IQ4_XS",
        {"attn_v": ("Q5_K", {}), "ffn_down": ("IQ4_XS", {"Q5_K": (0, 1, 2)})},
    ),
    "IQ4_NL": (
        "IQ4_NL",
        {"attn_v": ("Q5_K", {}), "ffn_down": ("IQ4_NL", {"Q5_K": (0, 1, 2)})},
    ),
    "Q4_0": ("Q4_0", {}),
    "Q4_1": ("Q4_1", {}),
    "Q4_K_S": (
        "Q4_K",
        {
            "attn_v": ("Q4_K", {"Q5_K": (0, 1, 2, 3)}),
            "ffn_down": ("Q4_K", {"Q5_K": (0, 1, 2)}),
        },
    ),
    "Q4_K_M": (
        "Q4_K",
        dict.fromkeys(("attn_v", "ffn_down"), ("Q6_K", {"Q4_K": _LESS_OF_QWEN3})),
    ),
    "Q5_0": ("Q5_0", {}),
    "Q5_1": ("Q5_1", {}),
    "Q5_K_S": ("Q5_K", {}),
    "Q5_K_M": (
        "Q5_K",
        dict.fromkeys(("attn_v", "ffn_down"), ("Q6_K", {"Q5_K": _LESS_OF_QWEN3})),
    ),
    "Q6_K": ("Q6_K", {}),
    "Q8_0": ("Q8_0", {}),
}


@pytest.mark.parametrize("mix", MIXTRAL)
@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_models_with_experts_get_the_types_that_llama_cpp_gives_them(family: str, mix: str) -> None:
    is_mixtral = family == "mixtral"
    layers, experts = (32, 8) if is_mixtral else (24, 12)
    decoder = Decoder(family, layers, heads=8, kv_heads=2, is_tied=False, experts=experts)
    usual, parts = (MIXTRAL if is_mixtral else QWEN3_MOE)[mix]
    if is_mixtral:
        parts = parts | dict.fromkeys(("attn_k", "attn_v"), ("Q8_0", {}))
    for layer in range(layers):
        for part in PARTS:
            kind, others = parts.get(part, (usual, {}))
            expected = next((other for other, held in others.items() if layer in held), kind)
            for name in (f"{part}_exps", f"{part}_shexp") if part.startswith("ffn_") else (part,):
                assert type_of(mix, MatrixRole(name, layer, 256), decoder) == expected, name
    expected = "Q8_0" if mix == "Q8_0" else "Q6_K"
    assert type_of(mix, MatrixRole("output", 0, 256), decoder) == expected


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("blk.0.ffn_down_exps.weight", (8, 64, 32), True),
        ("blk.0.attn_q.weight", (64, 32), True),
        ("token_embd.weight", (64, 32), True),
        ("blk.0.ffn_gate_inp.weight", (8, 32), False),
        ("blk.0.ffn_gate_inp_shexp.weight", (32,), False),
        ("blk.0.ffn_gate_inp_shexp.weight", (1, 32), False),
        ("blk.0.ffn_down_exps.bias", (8, 32), False),
        ("blk.0.attn_q_norm.weight", (4, 32), False),
        ("output_norm.weight", (32,), False),
    ],
)
def test_a_mix_is_of_matrices_that_are_no_routers(
    name: str, shape: tuple[int, ...], expected: bool
) -> None:
    assert is_quantized(name, shape) == expected


def test_a_70b_model_gets_more_bits_for_its_values() -> None:
    large = Decoder("llama", layers=80, heads=64, kv_heads=8, is_tied=False)
    assert type_of("Q4_K_S", MatrixRole("attn_v", 40, 8192), large) == "Q5_K"
    full = Decoder("llama", layers=80, heads=64, kv_heads=64, is_tied=False)
    assert type_of("Q4_K_S", MatrixRole("attn_v", 40, 8192), full) == "Q4_K"


def test_rows_that_no_block_divides_stay_in_16_bits() -> None:
    decoder = Decoder("qwen3", layers=2, heads=4, kv_heads=4, is_tied=False)
    for mix in SMOLLM2:
        assert type_of(mix, MatrixRole("attn_q", 0, 48), decoder) == "F16"


def test_every_mix_rounds_or_converts_all_matrices() -> None:
    assert set(MIXES) == {*SMOLLM2, "F16", "BF16", "F32"}
    decoder = Decoder("llama", layers=16, heads=32, kv_heads=8, is_tied=False)
    for mix in ("F16", "BF16", "F32"):
        for part in (*PARTS, "output", "token_embd"):
            assert type_of(mix, MatrixRole(part, 0, 2048), decoder) == mix


def test_every_mix_has_a_number_in_the_file() -> None:
    assert set(MIXES) <= set(FILE_TYPES.values())
