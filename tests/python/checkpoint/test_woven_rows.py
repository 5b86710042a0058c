"""Tensors in which the rows of queries, keys and values alternate, head by head."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sinkstream
from sinkstream import CheckpointError
from sinkstream.checkpoint.families import ARCHITECTURES, FAMILIES, GgufDescription, llama
from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES, GGUF_NAMES, Fused
from sinkstream.checkpoint.open_tensors import open_tensors
from sinkstream.checkpoint.spec import DecoderSpec
from sinkstream.loading import load as loading
from tests.data import tiny

HEADS, HEAD_DIM = 6, 16
QKV, QKV_BIAS = "self_attn.qkv_proj.weight", "self_attn.qkv_proj.bias"


def add_family(monkeypatch: pytest.MonkeyPatch, per: Any) -> None:
    """Add llama with tensors that hold queries, keys and values."""
    parts, biases = Fused(("q", "k", "v"), per), Fused(("q_bias", "k_bias", "v_bias"), per)

    def spec_from_gguf(file: GgufDescription) -> DecoderSpec:
        names = file.tensors | {"blk.0.attn_q.bias"}  # which says that there are biases
        return llama.FAMILY.spec_from_gguf(replace(file, tensors=names))

    woven = replace(
        llama.FAMILY,
        name="woven",
        spec_from_gguf=spec_from_gguf,
        folder_names=FOLDER_NAMES.with_fused({QKV: parts, QKV_BIAS: biases}),
        gguf_names=GGUF_NAMES.with_fused({"attn_qkv.weight": parts, "attn_qkv.bias": biases}),
    )
    monkeypatch.setitem(ARCHITECTURES, "woven", woven)
    monkeypatch.setitem(FAMILIES, "woven", woven)


def plain_model(kv_heads: int) -> tiny.TinyModel:
    """Return a llama whose queries, keys and values have biases."""
    model = tiny.build("llama")
    config = {**model.config, "num_key_value_heads": kv_heads, "attention_bias": True}
    random = np.random.default_rng(4)
    weights = dict(model.weights)
    hidden = config["hidden_size"]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}.self_attn."
        for name, heads in (("q", HEADS), ("k", kv_heads), ("v", kv_heads)):
            size = (heads * HEAD_DIM, hidden)
            weights[at + f"{name}_proj.weight"] = random.normal(0, 0.1, size).astype(np.float32)
            weights[at + f"{name}_proj.bias"] = random.normal(0, 0.5, size[0]).astype(np.float32)
        weights[at + "o_proj.bias"] = random.normal(0, 0.5, hidden).astype(np.float32)
    return replace(model, config=config, weights=weights, tokenizer=None)


def woven_model(plain: tiny.TinyModel, groups: int) -> tiny.TinyModel:
    """Return the same with one tensor for the three: of each group its queries, key and value."""
    weights = dict(plain.weights)
    for layer in range(plain.config["num_hidden_layers"]):
        at = f"model.layers.{layer}.self_attn."
        for kind in ("weight", "bias"):
            parts = [weights.pop(at + f"{name}_proj.{kind}") for name in "qkv"]
            cols = parts[0].shape[1:]
            in_groups = [part.reshape(groups, -1, *cols) for part in parts]
            fused = np.concatenate(in_groups, axis=1).reshape(-1, *cols)
            weights[at + f"qkv_proj.{kind}"] = np.ascontiguousarray(fused)
    return replace(plain, config={**plain.config, "model_type": "woven"}, weights=weights)


def fingerprint(path: Path, **options: Any) -> str:
    """Return a digest of every packed weight."""
    with sinkstream.load(path, window=100, **options) as model:
        return model._native.fingerprint()


@pytest.mark.parametrize("storage", ["F32", "F16", "BF16"])
@pytest.mark.parametrize(
    ("per", "kv_heads", "groups"),
    [("head", 6, 6), ("kv_head", 6, 6), ("kv_head", 2, 2), ("kv_head", 1, 1), ("layer", 2, 1)],
)
def test_rows_of_a_folder_are_the_same_bits_in_any_order(
    per: str,
    kv_heads: int,
    groups: int,
    storage: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_family(monkeypatch, per)
    plain = plain_model(kv_heads)
    expected = fingerprint(tiny.write_folder(plain, tmp_path / "plain", dtype=storage))
    woven = tiny.write_folder(woven_model(plain, groups), tmp_path / "woven", dtype=storage)
    assert fingerprint(woven) == expected
    quantized = fingerprint(tmp_path / "plain", quantize="int8")
    assert fingerprint(woven, quantize="int8") == quantized


@pytest.mark.parametrize("storage", ["F32", "Q8_0", "Q4_0", "Q5_1"])
def test_quantized_rows_of_a_file_are_the_same_bits_in_any_order(
    storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_family(monkeypatch, "kv_head")
    plain = replace(ARCHITECTURES["woven"], gguf_names=GGUF_NAMES)
    monkeypatch.setitem(ARCHITECTURES, "plain", plain)
    plain = plain_model(2)
    plain = replace(plain, config={**plain.config, "model_type": "plain"})
    file = tiny.write_gguf(plain, tmp_path / "plain.gguf", storage)
    woven = tiny.write_gguf(woven_model(plain, 2), tmp_path / "woven.gguf", storage)
    assert fingerprint(woven) == fingerprint(file)


def leave(weights: tiny.Weights) -> None:
    """Change nothing."""


def folder_of(tmp_path: Path, change: Callable[[tiny.Weights], None] = leave) -> Path:
    """Write a folder whose rows alternate, with changed tensors."""
    model = woven_model(plain_model(2), 2)
    change(model.weights)
    return tiny.write_folder(model, tmp_path / "m")


def test_progress_counts_the_bytes_of_every_part_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_family(monkeypatch, "kv_head")
    calls: list[tuple[int, int]] = []
    folder = folder_of(tmp_path)
    sinkstream.load(folder, window=100, progress=lambda *call: calls.append(call)).close()
    model = woven_model(plain_model(2), 2)
    total = sum(weight.nbytes for weight in model.weights.values())
    assert calls[-1] == (total, total)


def test_a_part_reads_its_own_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_family(monkeypatch, "kv_head")
    opened = open_tensors(folder_of(tmp_path))
    plain = plain_model(2).weights
    for tensor in opened.tensors:
        _, _, part = tensor.slot.name.rpartition(".")
        if tensor.slot.name.startswith("layers.1.") and part in ("q", "k", "v", "q_bias", "k_bias"):
            kind = "bias" if part.endswith("bias") else "weight"
            weight = plain[f"model.layers.1.self_attn.{part[0]}_proj.{kind}"]
            for begin, end in ((0, len(weight)), (15, 17), (3, 3), (len(weight) - 1, len(weight))):
                content = opened.source.read_rows(tensor, begin, end)
                assert content == weight[begin:end].tobytes(), (part, begin, end)
    opened.source.close()


def test_a_file_that_shrinks_is_an_error_that_names_the_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_family(monkeypatch, "kv_head")
    folder = folder_of(tmp_path)

    def shrink(*args: Any) -> None:
        entry = args[1].source.stored[f"model.layers.1.{QKV}"]
        os.truncate(folder / "model.safetensors", entry.offset + entry.size - 1)
        begin(*args)

    begin = loading._begin_to_read
    monkeypatch.setattr(loading, "_begin_to_read", shrink)
    with pytest.raises(
        CheckpointError, match=r"must hold \d+ bytes for .*layers\.1\.self_attn\.qkv"
    ):
        sinkstream.load(folder, window=100, threads=1)


def test_a_bias_of_another_size_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shorten(weights: tiny.Weights) -> None:
        weights[f"model.layers.1.{QKV_BIAS}"] = np.zeros(159, np.float32)

    add_family(monkeypatch, "kv_head")
    with pytest.raises(CheckpointError, match=r'bias" must have shape \[160\], but has \[159\]'):
        open_tensors(folder_of(tmp_path, shorten))


def test_a_matrix_of_another_size_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def narrow(weights: tiny.Weights) -> None:
        weights[f"model.layers.1.{QKV}"] = np.zeros((160, 95), np.float32)

    add_family(monkeypatch, "kv_head")
    with pytest.raises(CheckpointError, match=r'weight" must have shape \[160, 96\], but has'):
        open_tensors(folder_of(tmp_path, narrow))


def test_a_missing_bias_is_named_with_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave_out(weights: tiny.Weights) -> None:
        del weights[f"model.layers.1.{QKV_BIAS}"]

    add_family(monkeypatch, "kv_head")
    with pytest.raises(CheckpointError) as caught:
        open_tensors(folder_of(tmp_path, leave_out))
    for part in ("q_bias", "k_bias", "v_bias"):
        assert f'tensor "model.layers.1.{QKV_BIAS}[{part}]" of shape' in str(caught.value)


def test_a_bias_that_the_decoder_lacks_is_left_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_family(monkeypatch, "kv_head")
    model = woven_model(plain_model(2), 2)
    for layer in range(3):
        del model.weights[f"model.layers.{layer}.self_attn.o_proj.bias"]
    config = {**model.config, "attention_bias": False}
    folder = tiny.write_folder(replace(model, config=config), tmp_path / "m")
    with pytest.warns(UserWarning, match=r'qkv_proj.bias" of shape \[160\] belongs to no weight'):
        open_tensors(folder).source.close()


def test_shares_that_heads_cannot_have_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_family(monkeypatch, "head")
    config = {"num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 4}
    model = woven_model(plain_model(2), 2)
    for layer in range(3):
        model.weights[f"model.layers.{layer}.{QKV}"] = np.zeros((28, 96), np.float32)
    folder = tiny.write_folder(replace(model, config=model.config | config), tmp_path / "m")
    with pytest.raises(
        CheckpointError, match=r"must hold the rows of layers.0.k in 5 equal parts, but 4 is not"
    ):
        open_tensors(folder)
