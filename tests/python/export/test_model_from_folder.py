"""A folder becomes the GGUF file that llama.cpp's converter makes of it, or is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
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
from tests.data import quantized_folders, tiny

WRITTEN = (
    *tiny.FAMILIES, *tiny.ROPE_SCHEMES, "phi3-windows", "llama-one-layer", "llama-wide",
)  # fmt: skip
IDS = torch.arange(3, 120)[None]


def logits(path: Path, **options: Any) -> torch.Tensor:
    with sinkstream.load(path, dtype="float32", kv_dtype="float32", **options) as model:
        return model.forward(IDS)


def metadata(path: Path) -> dict[str, Any]:
    reader = gguf.GGUFReader(path)
    return {name: field.contents() for name, field in reader.fields.items()}


@pytest.mark.parametrize("name", WRITTEN)
def test_the_file_is_the_same_model(tmp_path: Path, name: str) -> None:
    folder = tiny.write_folder(tiny.build(name), tmp_path / name)
    target = tmp_path / "out.gguf"
    write_quantized(folder, target, "F32")
    expected, found = logits(folder), logits(target)
    # Adjacent pairs are added in another order than halves.
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize("name", ["llama", "phi3", "qwen2", "qwen3"])
def test_the_file_has_the_tensors_of_the_converter(tmp_path: Path, name: str) -> None:
    model = tiny.build(name)
    folder = tiny.write_folder(model, tmp_path / name)
    write_quantized(folder, tmp_path / "ours.gguf", "F16")
    tiny.write_gguf(model, tmp_path / "theirs.gguf", "F16")
    ours, theirs = (
        {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / f"{who}.gguf").tensors}
        for who in ("ours", "theirs")
    )
    assert ours.keys() == theirs.keys()
    for tensor_name, tensor in theirs.items():
        assert ours[tensor_name].tensor_type == tensor.tensor_type
        np.testing.assert_array_equal(ours[tensor_name].data, tensor.data)
    fields = metadata(tmp_path / "ours.gguf")
    for key, value in metadata(tmp_path / "theirs.gguf").items():
        if key not in ("general.name", "GGUF.kv_count"):
            assert fields[key] == value, key


def test_blocks_are_those_of_loading(tiny_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """Rows of queries and keys have another order, but each has the blocks of its numbers."""
    folder, target = tiny_folder("llama"), tmp_path / "out.gguf"
    write_quantized(folder, target, "Q8_0")
    expected = logits(folder, quantize="int8")
    assert (logits(target) - expected).abs().max() < 1e-5 * expected.abs().max()


def test_shards_and_16_bits_are_read(tmp_path: Path) -> None:
    model = tiny.build("llama")
    folder = tiny.write_folder(model, tmp_path / "model", shards=3, dtype="BF16")
    write_quantized(folder, tmp_path / "out.gguf", "BF16")
    tensors = {t.name: t for t in gguf.GGUFReader(tmp_path / "out.gguf").tensors}
    assert tensors["blk.0.attn_norm.weight"].tensor_type.name == "F32"
    assert tensors["blk.0.ffn_up.weight"].tensor_type.name == "BF16"
    expected = logits(folder)
    found = logits(tmp_path / "out.gguf")
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


def test_biases_of_queries_are_reordered_too(tmp_path: Path) -> None:
    model = tiny.build("llama")
    draw = np.random.Generator(np.random.PCG64(3))
    heads, kv_heads, head_dim = 6, 2, 16
    rows = {"q": heads * head_dim, "k": kv_heads * head_dim, "v": kv_heads * head_dim, "o": 96}
    biases = {
        f"model.layers.{layer}.self_attn.{part}_proj.bias": draw.normal(size=count).astype("f4")
        for layer in range(3)
        for part, count in rows.items()
    }
    model = replace(
        model,
        config={**model.config, "attention_bias": True},
        weights={**model.weights, **biases},
    )
    folder = tiny.write_folder(model, tmp_path / "model")
    write_quantized(folder, tmp_path / "out.gguf", "F32")
    expected = logits(folder)
    assert (logits(tmp_path / "out.gguf") - expected).abs().max() < 1e-5 * expected.abs().max()


def test_text_and_defaults_come_along(tmp_path: Path) -> None:
    folder = tiny.write_folder(tiny.build("llama"), tmp_path / "model")
    defaults = {"temperature": 0.5, "top_k": 7, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(defaults))
    write_quantized(folder, tmp_path / "out.gguf", "Q8_0")
    messages = [{"role": "user", "content": "The sinks 123, and\n\n déjà vu"}]
    with (
        sinkstream.load(folder, quantize="int8", window=60) as theirs,
        sinkstream.load(tmp_path / "out.gguf", window=60) as ours,
    ):
        results = [
            model.generate(messages, max_tokens=8, temperature=0, ignore_eos=True)
            for model in (theirs, ours)
        ]
        assert results[0].token_ids == results[1].token_ids
        assert results[0].stats.prompt_tokens == results[1].stats.prompt_tokens
    fields = metadata(tmp_path / "out.gguf")
    assert fields["general.sampling.temp"] == 0.5
    assert fields["general.sampling.top_k"] == 7
    assert fields["general.name"] == "model"
    assert fields["tokenizer.ggml.pre"] == "smollm"


def test_a_scheme_that_llama_cpp_does_not_read_in_a_family_is_refused(tmp_path: Path) -> None:
    model = tiny.build("qwen2")
    scaling = {
        "rope_type": "llama3", "rope_theta": 1e6, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    }  # fmt: skip
    model = replace(model, config={**model.config, "rope_parameters": scaling})
    folder = tiny.write_folder(model, tmp_path / "model")
    with pytest.raises(CheckpointError, match=r'\(default, linear, yarn\), but has "llama3"'):
        write_quantized(folder, tmp_path / "out.gguf", "Q8_0")


def test_what_gguf_cannot_describe_is_refused(tmp_path: Path) -> None:
    model = tiny.build("qwen2")
    scaling = {
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "truncate": False,
        "original_max_position_embeddings": 512,
    }  # fmt: skip
    model = replace(model, config={**model.config, "rope_parameters": scaling})
    folder = tiny.write_folder(model, tmp_path / "model")
    with pytest.raises(CheckpointError, match=r"can describe, but `.*frequencies` would be lost\."):
        write_quantized(folder, tmp_path / "out.gguf", "Q8_0")


def test_a_quantized_folder_is_refused(tmp_path: Path) -> None:
    quantized_folders.write(
        quantized_folders.Scheme("gptq", bits=8, group=64, model="llama-wide"), tmp_path / "model"
    )
    with pytest.raises(CheckpointError, match=r"16-bit or 32-bit, but .* is INT8\. Use the"):
        write_quantized(tmp_path / "model", tmp_path / "out.gguf", "Q8_0")
