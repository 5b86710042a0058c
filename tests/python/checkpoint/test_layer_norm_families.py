"""The descriptions of families with layer norms: their names of fields, ALiBi, what is refused."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from sinkstream.checkpoint.families import FAMILIES, GgufDescription
from sinkstream.checkpoint.families.alibi import alibi_slopes
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import DecoderSpec, Norm
from sinkstream.errors import CheckpointError

SIZES: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "vocab_size": 293,
    "max_position_embeddings": 512,
}
FALCON = {**SIZES, "max_position_embeddings": None, "intermediate_size": None}
MPT = {"d_model": 96, "n_heads": 6, "n_layers": 2, "vocab_size": 293, "max_seq_len": 512}
GGUF: dict[str, Any] = {
    "block_count": 2,
    "context_length": 512,
    "embedding_length": 96,
    "feed_forward_length": 384,
    "attention.head_count": 6,
    "attention.layer_norm_epsilon": 1e-5,
    "vocab_size": 293,
}


def from_config(family: str, fields: dict[str, Any]) -> DecoderSpec:
    return FAMILIES[family].spec_from_config(Fields(fields, "config.json"))


def from_gguf(family: str, fields: dict[str, Any], *tensors: str) -> DecoderSpec:
    metadata = Fields({**GGUF, **fields}, "m.gguf")
    return FAMILIES[family].spec_from_gguf(GgufDescription(metadata, frozenset(tensors), 0, None))


def test_cohere_has_the_length_that_it_was_trained_on() -> None:
    assert from_config("cohere", SIZES).trained_length == 512
    assert from_config("cohere", {**SIZES, "model_max_length": 4096}).trained_length == 4096


def test_a_file_of_cohere_without_a_scale_does_not_scale_its_logits() -> None:
    assert from_config("cohere", SIZES).logit_scale == 0.0625
    assert from_gguf("cohere", {}).logit_scale == 1
    assert from_gguf("cohere", {"logit_scale": 0.5}).logit_scale == 0.5


@pytest.mark.parametrize(
    ("fields", "rotary_dim", "second"),
    [
        ({}, 4, 100.0),
        ({"rotary_pct": 0.5}, 8, 10.0),
        ({"rotary_pct": 0.25, "rotary_emb_base": 400}, 4, 20.0),
        ({"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 16.0}}, 8, 2.0),
    ],
)
def test_gpt_neox_rotates_a_part_of_each_head(
    fields: dict[str, Any], rotary_dim: int, second: float
) -> None:
    rope = from_config("gpt_neox", {**SIZES, **fields}).ropes[0]
    assert rope.rotary_dim == rotary_dim
    assert rope.inverse_frequencies[1] == pytest.approx(1 / second)


def test_gpt_neox_is_parallel_unless_it_says_otherwise() -> None:
    for spec in (from_config("gpt_neox", SIZES), from_gguf("gpt_neox", {})):
        assert spec.blocks[0].parallel
        assert spec.blocks[0].mlp_norm
    assert not from_config("gpt_neox", {**SIZES, "use_parallel_residual": False}).blocks[0].parallel
    assert not from_gguf("gpt_neox", {"use_parallel_residual": False}).blocks[0].parallel


def test_an_unknown_activation_is_refused() -> None:
    sentence = '`hidden_act` must be one of gelu, gelu_fast, .*, silu, but is "tanh"'
    with pytest.raises(CheckpointError, match=sentence):
        from_config("gpt_neox", {**SIZES, "hidden_act": "tanh"})


@pytest.mark.parametrize(
    ("fields", "kv_heads", "norms", "parallel"),
    [
        ({}, 1, 1, True),
        ({"num_kv_heads": 6}, 1, 1, True),
        ({"multi_query": False, "parallel_attn": False}, 6, 2, False),
        ({"new_decoder_architecture": True, "num_kv_heads": 2}, 2, 2, True),
        ({"new_decoder_architecture": True, "n_head_kv": 3, "parallel_attn": False}, 3, 2, True),
        ({"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}, 6, 1, True),
    ],
)
def test_three_kinds_of_falcon(
    fields: dict[str, Any], kv_heads: int, norms: int, parallel: bool
) -> None:
    spec = from_config("falcon", {**FALCON, **fields})
    block = spec.blocks[0]
    assert (spec.kv_heads, 1 + block.mlp_norm, block.parallel) == (kv_heads, norms, parallel)
    assert (spec.trained_length, spec.intermediate_size) == (2048, 384)


def test_falcon_of_older_configs() -> None:
    older = {"hidden_size": 96, "n_head": 6, "n_layer": 2, "vocab_size": 293}
    assert from_config("falcon", older) == from_config("falcon", FALCON)
    with pytest.raises(CheckpointError, match=r"`num_attention_heads` must .*, but is missing"):
        from_config("falcon", {"hidden_size": 96})
    with pytest.raises(CheckpointError, match=r"`n_head` must be an integer .*, but is 0"):
        from_config("falcon", {**older, "n_head": 0})


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 12, 32, 71])
def test_slopes_are_those_of_transformers(heads: int) -> None:
    from transformers.models.falcon.modeling_falcon import build_alibi_tensor
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    falcon = {**FALCON, "hidden_size": 16 * heads, "num_attention_heads": heads, "alibi": True}
    spec = from_config("falcon", {**falcon, "multi_query": False})
    theirs = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    assert list(spec.blocks[0].attention.slopes) == (theirs / 4).tolist()  # by sqrt(16)
    for most in (8, 16):
        slopes = -build_mpt_alibi_tensor(heads, 2, most)[:, 0, 0]  # type: ignore[no-untyped-call]
        assert alibi_slopes(heads, most) == pytest.approx(slopes.tolist(), rel=1e-6)


def test_mpt_reads_what_its_config_calls_otherwise() -> None:
    spec = from_config("mpt", MPT)
    assert (spec.hidden_size, spec.heads, spec.layers, spec.trained_length) == (96, 6, 2, 512)
    assert (spec.intermediate_size, spec.ropes[0].rotary_dim) == (384, 0)
    assert from_config("mpt", {**MPT, "expansion_ratio": 3}).intermediate_size == 288
    with pytest.raises(CheckpointError, match=r"`d_model` must be an integer .*, but is 0"):
        from_config("mpt", {**MPT, "d_model": 0})
    with pytest.raises(CheckpointError, match=r"`max_seq_len` must .*, but is missing"):
        from_config("mpt", {**MPT, "max_seq_len": None})


def test_mpt_reads_its_attention() -> None:
    fields = {"clip_qkv": 6.0, "qk_ln": True, "softmax_scale": 0.5, "alibi_bias_max": 16}
    attention = from_config("mpt", {**MPT, "attn_config": fields}).blocks[0].attention
    assert (attention.clip, attention.qk_norm, attention.scale) == (6.0, "full", 0.5)
    assert attention.slopes == tuple(alibi_slopes(6, 16))
    stored = {"attention.clamp_kqv": 6.0, "attention.max_alibi_bias": 16.0}
    attention = from_gguf("mpt", stored, "blk.0.attn_q_norm.weight").blocks[0].attention
    assert (attention.clip, attention.qk_norm) == (6.0, "full")
    assert attention.slopes == tuple(alibi_slopes(6, 16))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"attn_config": {"alibi": False}}, "`alibi` must be true or absent, .* Learned positions"),
        ({"attn_config": {"prefix_lm": True}}, "`prefix_lm` must be false or absent"),
        ({"attn_config": {"attn_type": "multiquery_attention"}}, "`attn_type` must be"),
        ({"attn_config": {"clip_qkv": -1}}, "`clip_qkv` must be a number from 0"),
        ({"no_bias": False}, "`no_bias` must be true or absent"),
        ({"logit_scale": "inv_sqrt_d_model"}, "`logit_scale` must be absent"),
    ],
)
def test_what_mpt_cannot_compute_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        from_config("mpt", {**MPT, **fields})


def test_mpt_without_alibi_is_refused_in_gguf() -> None:
    with pytest.raises(CheckpointError, match=r"`attention.max_alibi_bias` must be above 0, but"):
        from_gguf("mpt", {})


def test_nemotron_has_an_ungated_mlp_and_biases_on_demand() -> None:
    tensors = ("blk.0.attn_q.bias", "blk.0.attn_output.bias", "blk.0.ffn_up.bias")
    for has_attention, has_mlp in product((False, True), repeat=2):
        flags = {"attention_bias": has_attention, "mlp_bias": has_mlp}
        present = (*tensors[: 2 * has_attention], *tensors[2:][:has_mlp])
        for spec in (
            from_config("nemotron", {**SIZES, **flags}),
            from_gguf("nemotron", {}, *present),
        ):
            (block,) = spec.blocks
            assert block.attention.qkv_bias == block.attention.output_bias == has_attention
            assert (block.mlp.activation, block.mlp.gated, block.mlp.bias) == (
                "relu2",
                False,
                has_mlp,
            )
            assert block.norm == spec.final_norm == Norm("layer", 1e-5, bias=True)


def test_nemotron_reads_its_activation_and_epsilon() -> None:
    spec = from_config("nemotron", {**SIZES, "hidden_act": "silu", "norm_eps": 1e-6})
    assert (spec.blocks[0].mlp.activation, spec.final_norm.eps) == ("silu", 1e-6)


def test_a_file_of_nemotron_whose_heads_are_wider_than_the_hidden_size_is_refused() -> None:
    assert from_config("nemotron", {**SIZES, "head_dim": 32}).ropes[0].rotary_dim == 16
    rule = (
        "`attention.key_length` must be such that 6 heads together are as wide as the hidden size, "
        "96, but is 32. Load"
    )
    with pytest.raises(CheckpointError, match=rule):
        from_gguf("nemotron", {"attention.key_length": 32})


def test_stablelm_without_a_second_norm_is_parallel() -> None:
    for is_parallel in (False, True):
        spec = from_config("stablelm", {**SIZES, "use_parallel_residual": is_parallel})
        assert (spec.blocks[0].parallel, spec.blocks[0].mlp_norm) == (is_parallel, not is_parallel)
        norms = () if is_parallel else ("blk.0.ffn_norm.weight",)
        spec = from_gguf("stablelm", {"use_parallel_residual": True}, *norms)
        assert (spec.blocks[0].parallel, spec.blocks[0].mlp_norm) == (is_parallel, not is_parallel)


def test_norms_of_single_heads_are_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match=r"`qk_layernorm` must be false .* for each head"):
        from_config("stablelm", {**SIZES, "qk_layernorm": True})
    with pytest.raises(CheckpointError, match=r"`use_qk_norm` must be false .* for each head"):
        from_config("cohere", {**SIZES, "use_qk_norm": True})
    with pytest.raises(CheckpointError, match=r'must not have "blk.0.attn_q_norm.weight"'):
        from_gguf("stablelm", {}, "blk.0.attn_q_norm.weight")


def test_starcoder2_has_biases_unless_it_says_otherwise() -> None:
    spec, plain = (
        from_config("starcoder2", {**SIZES, "use_bias": use_bias}) for use_bias in (True, False)
    )
    for found, has_bias in ((spec, True), (plain, False)):
        attention, mlp = found.blocks[0].attention, found.blocks[0].mlp
        assert {attention.qkv_bias, attention.output_bias, mlp.bias} == {has_bias}
        assert (found.final_norm.bias, mlp.activation, mlp.gated) == (True, "gelu_tanh", False)
    windows = from_config("starcoder2", {**SIZES, "sliding_window": 64}).own_windows
    assert windows == (64, 64)


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({}, (4096, 4096)),  # as llama.cpp's converter leaves it out
        ({"attention.sliding_window": 64}, (64, 64)),
        ({"attention.sliding_window": 0}, ()),
    ],
)
def test_a_file_of_starcoder2_has_the_window_of_its_models(
    fields: dict[str, Any], windows: tuple[int, ...]
) -> None:
    assert from_gguf("starcoder2", fields).own_windows == windows
