"""Folders of every family become the files that llama.cpp's converter makes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

import sinkstream
from sinkstream.errors import CheckpointError
from sinkstream.export.write_quantized import write_quantized
from tests.data import tiny
from tests.data.family_configs import FAMILY_CONFIGS, NOT_WRITTEN
from tests.data.family_models import save_family

IDS = torch.arange(3, 120)[None]  # more than any layer's own window

# Fields of ours that the converter leaves to defaults, or writes only for some folders.
MORE = {
    "attention.head_count_kv",
    "attention.key_length",
    "attention.sliding_window",
    "attention.value_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.attn_factor",
    "vocab_size",
}
ONLY_EXPERTS = ("mellum", "qwen2_moe", "qwen3_moe")
"""Models without a layer that has the width which the converter writes next to that of experts."""
WRITTEN_OTHERWISE = {
    "phimoe": ("phimoe.attention.sliding_window", "phimoe.rope.scaling.attn_factor"),
}
"""Fields of an architecture that the converter writes and no published model has: a window of 0,
and the usual factor of longrope instead of the folder's."""
_OF_THE_FOLDER = ("GGUF.", "general.", "tokenizer.")


def fields_of(path: Path) -> dict[str, Any]:
    """Return the decoder's fields, with their types."""
    return {
        name: (field.contents(), field.types)
        for name, field in gguf.GGUFReader(path).fields.items()
        if not name.startswith(_OF_THE_FOLDER) or name == "general.architecture"
    }


def tensors_of(path: Path) -> dict[str, gguf.ReaderTensor]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


@pytest.mark.filterwarnings("ignore:load. .*for images or sound")
@pytest.mark.parametrize("name", sorted({*tiny.CONFIGS, *FAMILY_CONFIGS} - set(NOT_WRITTEN)))
def test_a_file_is_that_of_the_converter(name: str, converted: Path, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.gguf", converted / f"{name}.gguf"
    write_quantized(converted / name, ours, "F32", threads=1)
    expected, found = fields_of(theirs), fields_of(ours)
    for fields in (expected, found) if name in ONLY_EXPERTS else ():
        fields.pop(next(key for key in fields if key.endswith(".feed_forward_length")))
    for key in WRITTEN_OTHERWISE.get(expected["general.architecture"][0], ()):
        del expected[key]
    assert {key: found.get(key) for key in expected} == expected
    assert {key.partition(".")[2] for key in found.keys() - expected.keys()} <= MORE
    expected, found = tensors_of(theirs), tensors_of(ours)
    assert found.keys() == expected.keys()
    for tensor, data in expected.items():
        assert found[tensor].tensor_type == data.tensor_type, tensor
        if tensor == "rope_freqs.weight":  # which the converter computes in float32
            np.testing.assert_allclose(found[tensor].data, data.data, rtol=1e-6)
        else:
            # A dimension of 1 means nothing to llama.cpp.
            np.testing.assert_array_equal(found[tensor].data.squeeze(), data.data.squeeze())


def logits(path: Path) -> torch.Tensor:
    with sinkstream.load(path, dtype="float32", kv_dtype="float32", window=300) as model:
        return model.forward(IDS)


_CHANGES: dict[str, dict[str, Any]] = {
    "gemma3-linear": {"query_pre_attn_scalar": 32, "layer_types": None, "num_hidden_layers": 7},
    "mpt-clipped": {"attn_config": {"clip_qkv": 0.8}},
}


@pytest.mark.filterwarnings("ignore:load. .*for images or sound")
@pytest.mark.parametrize("name", sorted(FAMILY_CONFIGS.keys() - set(NOT_WRITTEN)))
def test_the_file_is_the_same_model(name: str, tmp_path: Path) -> None:
    save_family(name, tmp_path / name, peak=1.0, **_CHANGES.get(name, {}))
    target = tmp_path / "out.gguf"
    write_quantized(tmp_path / name, target, "F32", threads=1)
    expected = logits(tmp_path / name)
    assert (logits(target) - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize("name", NOT_WRITTEN)
def test_what_llama_cpp_would_not_read_as_it_is_is_refused(name: str, tmp_path: Path) -> None:
    if name in FAMILY_CONFIGS:
        save_family(name, tmp_path / name)
    else:
        tiny.write_folder(tiny.build(name), tmp_path / name)
    with pytest.raises(CheckpointError, match=f"^quantize: .*{name} {NOT_WRITTEN[name]}"):
        write_quantized(tmp_path / name, tmp_path / "out.gguf", "Q8_0")
    assert not (tmp_path / "out.gguf").exists()


def test_windows_of_exaone4_are_written_at_the_size_that_has_them(tmp_path: Path) -> None:
    save_family("exaone4-windows", tmp_path / "model", peak=1.0, num_hidden_layers=64)
    target = tmp_path / "out.gguf"
    write_quantized(tmp_path / "model", target, "F32", threads=1)
    slides = fields_of(target)["exaone4.attention.sliding_window_pattern"][0]
    assert slides == [True, True, True, False] * 16
    expected = logits(tmp_path / "model")
    assert (logits(target) - expected).abs().max() < 1e-5 * expected.abs().max()


def test_a_window_of_starcoder2_is_in_the_file(tmp_path: Path) -> None:
    for window in (40, None):
        folder = tmp_path / f"{window}"
        save_family("starcoder2", folder, sliding_window=window)
        write_quantized(folder, tmp_path / "out.gguf", "F32", replaces=True)
        found = fields_of(tmp_path / "out.gguf")["starcoder2.attention.sliding_window"][0]
        assert found == (window or 0)


def test_heads_must_be_as_wide_as_the_hidden_size_where_llama_cpp_takes_them_to_be(
    tmp_path: Path,
) -> None:
    save_family("exaone4", tmp_path / "model", head_dim=32)
    rule = r"must together be as wide as the hidden size 96, .* there are 6 heads of width 32\."
    with pytest.raises(CheckpointError, match=rule):
        write_quantized(tmp_path / "model", tmp_path / "out.gguf", "Q8_0")


@pytest.mark.parametrize("name", ["cohere", "cohere2", "gemma", "gemma2"])
def test_an_output_matrix_without_a_place_is_refused(name: str, tmp_path: Path) -> None:
    save_family(name, tmp_path / "model", tie_word_embeddings=False)
    with pytest.raises(
        CheckpointError, match=r'must not have the tensor "output\.weight", but does;'
    ):
        write_quantized(tmp_path / "model", tmp_path / "out.gguf", "Q8_0")


def test_attention_biases_of_qwen3_are_refused(tmp_path: Path) -> None:
    model = tiny.build("qwen3")
    shape = {"q": 128, "k": 128, "v": 128, "o": 48}
    biases = {
        f"model.layers.{layer}.self_attn.{part}_proj.bias": np.zeros(count, np.float32)
        for layer in range(2)
        for part, count in shape.items()
    }
    model = replace(
        model,
        config={**model.config, "attention_bias": True},
        weights={**model.weights, **biases},
    )
    folder = tiny.write_folder(model, tmp_path / "model")
    with pytest.raises(CheckpointError, match=r'must not have the tensor "blk.*output\.bias"'):
        write_quantized(folder, tmp_path / "out.gguf", "Q8_0")


_OTHER_LAYERS = [f"{kind}_attention" for kind in ("sliding", "full", *["sliding"] * 5)]


@pytest.mark.parametrize(
    ("name", "changes", "lost"),
    [
        ("gemma3", {"layer_types": _OTHER_LAYERS}, "block_of_layer"),
        ("gemma2-no-caps", {"query_pre_attn_scalar": 32}, "blocks.mixer.soft_cap"),
        ("smollm3", {"no_rope_layers": [1, 0, 1, 1]}, "block_of_layer"),
        ("mpt-clipped", {}, "blocks.mixer.scale"),
        ("gpt_neox", {"hidden_act": "gelu_fast"}, "blocks.feed_forward.activation"),
    ],
)  # fmt: skip
def test_what_a_family_cannot_say_in_gguf_is_refused(
    name: str, changes: dict[str, Any], lost: str, tmp_path: Path
) -> None:
    save_family(name, tmp_path / "model", **changes)
    with pytest.raises(CheckpointError, match=f"can describe, but `{lost}` would be lost"):
        write_quantized(tmp_path / "model", tmp_path / "out.gguf", "Q8_0")
