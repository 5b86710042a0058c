"""Folders that stack a layer's experts, each stored for `x @ W`: columns with all rows."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import sinkstream
from sinkstream import CheckpointError
from sinkstream.checkpoint.open_tensors import open_tensors
from sinkstream.export.write_quantized import write_quantized
from sinkstream.loading import load as loading
from tests.data import quantized_folders, tiny
from tests.data.family_models import build_family, save_family

Tensors = dict[str, torch.Tensor]

LAYERS, EXPERTS = 2, 7
SQUARE = 48  # of 96 columns are gate and up as high as they are wide
SIZES = (40, SQUARE)
IDS = torch.from_numpy(np.random.default_rng(3).integers(3, 290, (1, 100)))
TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def save_plain(folder: Path, size: int = 40, dtype: torch.dtype = torch.float32) -> Path:
    """Write a model of Qwen3 with a tensor for each matrix of each expert."""
    save_family("qwen3_moe", folder, num_hidden_layers=LAYERS, moe_intermediate_size=size)
    tensors = load_file(folder / "model.safetensors")
    rounded = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    save_file(rounded, folder / "model.safetensors", {"format": "pt"})
    return folder


def stacked(tensors: Tensors, end: str = "", *, transposed: bool = True) -> Tensors:
    """Return the same with the experts of a layer in two tensors, gate before up.

    `end`: of the names, after "weight".
    """
    found = dict(tensors)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}.mlp.experts."
        gate, up, down = (
            torch.stack([found.pop(f"{at}{i}.{part}_proj.weight{end}") for i in range(EXPERTS)])
            for part in ("gate", "up", "down")
        )
        for name, experts in (("gate_up_proj", torch.cat([gate, up], 1)), ("down_proj", down)):
            found[at + name + end] = experts.transpose(1, 2) if transposed else experts
    return {name: tensor.contiguous() for name, tensor in found.items()}


def write_stacked(
    plain: Path, folder: Path, change: Callable[[Tensors], None] | None = None
) -> Path:
    """Write the stacked tensors of a folder, changed by `change`."""
    folder.mkdir()
    (folder / "config.json").write_text((plain / "config.json").read_text())
    tensors = stacked(load_file(plain / "model.safetensors"))
    if change is not None:
        change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_plain(tmp_path_factory.mktemp("experts") / "plain")


@pytest.fixture(scope="module")
def folder(plain: Path) -> Path:
    return write_stacked(plain, plain.parent / "stacked")


def fingerprint(path: Path, **options: Any) -> str:
    """Return a digest of every packed weight."""
    with sinkstream.load(path, window=100, **options) as model:
        return model._native.fingerprint()


def logits_of(path: Path) -> np.ndarray:
    with sinkstream.load(path, dtype="float32", kv_dtype="float32", window=100) as model:
        return model.forward(IDS)[0].numpy()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", SIZES)
def test_transposed_experts_are_the_same_bits(size: int, dtype: str, tmp_path: Path) -> None:
    plain = save_plain(tmp_path / "plain", size, TYPES[dtype])
    found = write_stacked(plain, tmp_path / "stacked")
    for options in ({}, {"quantize": "int8"}, {"quantize": "q4_k"}):
        assert fingerprint(found, **options) == fingerprint(plain, **options)


def test_experts_that_are_stacked_but_not_transposed_are_the_same_bits(
    plain: Path, tmp_path: Path
) -> None:
    def turn_back(tensors: Tensors) -> None:
        tensors.update(stacked(load_file(plain / "model.safetensors"), transposed=False))

    assert fingerprint(write_stacked(plain, tmp_path / "m", turn_back)) == fingerprint(plain)


@pytest.fixture(scope="module")
def fp8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a tensor of FP8 for each matrix of each expert."""
    folder = tmp_path_factory.mktemp("fp8")
    whole = save_plain(folder / "whole", 64)
    config = json.loads((whole / "config.json").read_text())
    weights = {name: t.numpy() for name, t in load_file(whole / "model.safetensors").items()}
    model = tiny.TinyModel("qwen3_moe", config, weights, None)
    scheme = quantized_folders.Scheme("fp8", bits=8, group=32, scale="float32")
    quantized_folders.write(scheme, folder / "plain", model)
    return folder / "plain"


def stacked_fp8(fp8: Path, *, transposed: bool = True) -> Tensors:
    """Return the tensors of a folder with stacked codes and scales."""
    tensors = load_file(fp8 / "model.safetensors")
    tensors = {
        name: t.view(torch.uint8) if t.dtype == torch.float8_e4m3fn else t
        for name, t in tensors.items()
    }
    for end in ("", "_scale_inv"):
        tensors = stacked(tensors, end, transposed=transposed)
    return {
        name: t.view(torch.float8_e4m3fn) if t.dtype == torch.uint8 else t
        for name, t in tensors.items()
    }


@pytest.mark.parametrize("transposed", [False, True])
def test_experts_of_fp8_are_the_same_bits(fp8: Path, tmp_path: Path, transposed: bool) -> None:
    shutil.copytree(fp8, tmp_path / "m")
    tensors = stacked_fp8(fp8, transposed=transposed)
    save_file(tensors, tmp_path / "m" / "model.safetensors", {"format": "pt"})
    calls: list[tuple[int, int]] = []
    found = fingerprint(tmp_path / "m", progress=lambda *call: calls.append(call))
    assert found == fingerprint(fp8)
    total = sum(tensor.nbytes for tensor in tensors.values())
    assert calls[-1] == (total, total)


SCALES = "model.layers.1.mlp.experts.gate_up_proj_scale_inv"


@pytest.mark.parametrize(
    ("fields", "change", "sentence"),
    [
        ({}, lambda x: x[:, 1:], rf'"{SCALES}" must have shape \[7, 3, 4\], but has \[7, 2, 4\]'),
        ({}, lambda x: x.mT, rf'"{SCALES}" must have shape \[7, 3, 4\], but has \[7, 4, 3\]'),
        ({}, lambda x: None, rf'"{SCALES}" of shape \[7, 4, 3\] or \[7, 3, 4\] is missing'),
        (
            {"weight_block_size": [48, 32]},
            lambda x: x,
            r'_scale_inv" must hold scales for blocks t',
        ),
        ({"weight_block_size": None}, lambda x: x, r'gate_up_proj" must have scales for blocks'),
    ],
)
def test_scales_of_fp8_that_do_not_fit_are_refused_by_name(
    fp8: Path, tmp_path: Path, fields: dict[str, Any], change: Any, sentence: str
) -> None:
    folder = shutil.copytree(fp8, tmp_path / "m")
    tensors = stacked_fp8(fp8)
    change_of(SCALES, change)(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= fields
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=sentence):
        open_tensors(folder)


def test_experts_of_a_folder_in_parts_are_the_same_bits(plain: Path, tmp_path: Path) -> None:
    whole = write_stacked(plain, tmp_path / "m")
    tensors = load_file(whole / "model.safetensors")
    (whole / "model.safetensors").unlink()
    shards = {name: f"{i % 3}.safetensors" for i, name in enumerate(sorted(tensors))}
    for shard in set(shards.values()):
        held = {name: tensors[name] for name in tensors if shards[name] == shard}
        save_file(held, whole / shard, {"format": "pt"})
    (whole / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert fingerprint(whole) == fingerprint(plain)


@pytest.mark.parametrize("dtype", TYPES)
def test_gpt_oss_without_blocks_has_the_logits_of_transformers(dtype: str, tmp_path: Path) -> None:
    theirs = build_family("gpt_oss", num_hidden_layers=2)
    with torch.inference_mode():
        for weight in theirs.parameters():
            weight.copy_(weight.to(TYPES[dtype]))
        expected = theirs(IDS, use_cache=False).logits[0].numpy()
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    rounded = {name: tensor.to(TYPES[dtype]) for name, tensor in tensors.items()}
    save_file(rounded, tmp_path / "model.safetensors", {"format": "pt"})
    found = logits_of(tmp_path)
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


def test_gpt_oss_without_blocks_is_the_same_model_as_a_file(tmp_path: Path) -> None:
    folder, file = tmp_path / "m", tmp_path / "m.gguf"
    build_family("gpt_oss", num_hidden_layers=2, peak=1.0).save_pretrained(folder)
    write_quantized(folder, file, "F32")
    found, expected = logits_of(file), logits_of(folder)
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("family", ["gpt_oss", "qwen3_moe"])
def test_any_rows_of_an_expert_can_be_read(family: str, folder: Path, tmp_path: Path) -> None:
    if family == "gpt_oss":
        build_family(family, num_hidden_layers=1).save_pretrained(tmp_path)
        folder = tmp_path
    tensors = load_file(folder / "model.safetensors")
    opened = open_tensors(folder)
    read = 0
    for tensor in opened.tensors:
        if not tensor.is_transposed:
            continue
        _, layer, _, expert, part = tensor.slot.name.split(".")
        name = "down_proj" if part == "down" else "gate_up_proj"
        whole = tensors[f"model.layers.{layer}.mlp.experts.{name}"][int(expert)].T
        if part != "down":
            is_up = int(part == "up")
            whole = whole[is_up::2] if family == "gpt_oss" else whole.chunk(2)[is_up]
        for begin, end in ((0, len(whole)), (15, 17), (3, 3), (len(whole) - 1, len(whole))):
            content = opened.source.read_rows(tensor, begin, end)
            assert content == whole[begin:end].contiguous().numpy().tobytes(), tensor.slot.name
        read += 1
    opened.source.close()
    assert read == 3 * (6 if family == "gpt_oss" else LAYERS * EXPERTS)


def test_the_file_that_quantize_writes_is_that_of_separate_experts(
    plain: Path, tmp_path: Path
) -> None:
    found = write_stacked(plain, tmp_path / "plain")  # the same name
    for source, target in ((plain, "a.gguf"), (found, "b.gguf")):
        write_quantized(source, tmp_path / target, "Q4_0")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_progress_counts_every_byte_once(folder: Path) -> None:
    calls: list[tuple[int, int]] = []
    sinkstream.load(folder, window=100, progress=lambda *call: calls.append(call)).close()
    tensors = load_file(folder / "model.safetensors")
    total = sum(tensor.nbytes for tensor in tensors.values())
    assert calls[-1] == (total, total)


def test_a_file_that_shrinks_is_an_error_that_names_the_tensor(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_stacked(plain, tmp_path / "m")
    name = "model.layers.1.mlp.experts.gate_up_proj"

    def shrink(*args: Any) -> None:
        entry = args[1].source.stored[name]
        os.truncate(folder / "model.safetensors", entry.offset + entry.size - 1)
        begin(*args)

    begin = loading._begin_to_read
    monkeypatch.setattr(loading, "_begin_to_read", shrink)
    with pytest.raises(CheckpointError, match=rf'must hold \d+ bytes for tensor "{name}"'):
        sinkstream.load(folder, window=100, threads=1)


def change_of(name: str, change: Callable[[torch.Tensor], torch.Tensor | None]) -> Any:
    def apply(tensors: Tensors) -> None:
        changed = change(tensors.pop(name))
        if changed is not None:
            tensors[name] = changed.contiguous()

    return apply


GATE_UP = "model.layers.1.mlp.experts.gate_up_proj"
DOWN = "model.layers.1.mlp.experts.down_proj"


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        (GATE_UP, lambda x: x[1:], r"have shape \[7, 80, 96\] or \[7, 96, 80\], but has \[6, 96, "),
        (GATE_UP, lambda x: x[..., 1:], r"shape \[7, 80, 96\] or .*, but has \[7, 96, 79\]"),
        (DOWN, lambda x: x[:, 1:], r"shape \[7, 96, 40\] or \[7, 40, 96\], but has \[7, 39, 96\]"),
        (GATE_UP, lambda x: None, r"of shape \[7, 80, 96\] or \[7, 96, 80\] is missing"),
        (DOWN, lambda x: None, r"of shape \[7, 96, 40\] or \[7, 40, 96\] is missing"),
        (DOWN, lambda x: x.to(torch.float8_e4m3fn), r"stored as one of .*, but is F8_E4M3"),
        (DOWN, lambda x: x[0], r"\[7, 96, 40\] or \[7, 40, 96\], but has \[40, 96\]"),
    ],
)
def test_experts_of_another_shape_are_refused_by_name(
    plain: Path, tmp_path: Path, name: str, change: Any, sentence: str
) -> None:
    folder = write_stacked(plain, tmp_path / "m", change_of(name, change))
    with pytest.raises(CheckpointError, match=sentence) as caught:
        open_tensors(folder)
    assert f'"{name}' in str(caught.value)


def test_a_number_that_no_block_can_hold_is_refused_with_its_row(
    plain: Path, tmp_path: Path
) -> None:
    def spoil(gate_up: torch.Tensor) -> torch.Tensor:
        gate_up[3, 7, 40 + 11] = float("inf")
        return gate_up

    folder = write_stacked(plain, tmp_path / "m", change_of(GATE_UP, spoil))
    with pytest.raises(CheckpointError, match=r"layers\.1\.experts\.3\.up.*row 11 does not"):
        sinkstream.load(folder, window=100, quantize="int8")
