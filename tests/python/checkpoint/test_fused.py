"""Tensors that hold the rows of several weights, in folders and in GGUF files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import sinkstream
from sinkstream import CheckpointError
from tests.data import tiny


def logits_of(path: Path) -> np.ndarray:
    ids = torch.arange(1, 121)[None]
    with sinkstream.load(path, dtype="float32", kv_dtype="float32", window=100, threads=1) as model:
        return model.forward(ids, model.new_cache()).numpy()


def test_a_gguf_file_holds_the_same_model_as_the_folder(
    tiny_folder: Callable[[str], Path], tiny_gguf: Callable[[str, str], Path]
) -> None:
    folder = logits_of(tiny_folder("phi3"))
    assert logits_of(tiny_gguf("phi3", "F32")).tobytes() == folder.tobytes()


@pytest.mark.parametrize("storage", ["F16", "Q8_0", "Q4_0"])
def test_rows_of_every_storage_type_are_split(
    storage: str, tiny_gguf: Callable[[str, str], Path], tmp_path: Path
) -> None:
    rounded = tiny.as_stored(tiny.build("phi3"), storage)
    expected = logits_of(tiny.write_folder(rounded, tmp_path))
    found = logits_of(tiny_gguf("phi3", storage))
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


def rewrite(
    folder: Path, tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], None]
) -> Path:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    save_file(weights, tmp_path / "model.safetensors")
    return tmp_path


QKV = "model.layers.1.self_attn.qkv_proj.weight"


def test_a_fused_tensor_of_another_size_is_refused_by_name(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    def shorten(weights: dict[str, torch.Tensor]) -> None:
        weights[QKV] = weights[QKV][:-1].contiguous()

    folder = rewrite(tiny_folder("phi3"), tmp_path, shorten)
    with pytest.raises(CheckpointError, match=r'qkv_proj.weight" must have shape \[160, 96\], but'):
        sinkstream.load(folder)


def test_a_missing_fused_tensor_is_named_with_its_parts(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    def leave_out(weights: dict[str, torch.Tensor]) -> None:
        del weights[QKV]

    folder = rewrite(tiny_folder("phi3"), tmp_path, leave_out)
    with pytest.raises(CheckpointError) as caught:
        sinkstream.load(folder)
    for part in "qkv":
        assert f'tensor "{QKV}[{part}]" of shape' in str(caught.value)


def test_as_many_factors_as_rotated_pairs_are_needed(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    config = json.loads((tiny_folder("phi3") / "config.json").read_text())
    factors = [1.0] * 7
    config["rope_scaling"] = {
        "type": "longrope", "short_factor": factors, "long_factor": factors,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="`short_factor` must be a list of 8 numbers"):
        sinkstream.load(tmp_path)
