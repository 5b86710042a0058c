"""Damaged or inconsistent experts: every format answers with a sentence that names the tensor."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import sinkstream
from sinkstream.errors import CheckpointError, NonFiniteLogits
from sinkstream.loading.open_checkpoint import open_checkpoint
from tests.data.family_gguf import write_family_gguf
from tests.data.family_models import build_family, save_family

Change = Callable[[torch.Tensor], torch.Tensor | None]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("experts")

    def folder(family: str) -> Path:
        if not (root / family).exists():
            save_family(family, root / family, num_hidden_layers=2)
        return root / family

    return folder


def drop(_: torch.Tensor) -> None:
    return None


def fewer(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[1:].contiguous()


def narrower(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[..., 1:].contiguous()


def as_numbers(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float32)


FOLDERS: list[tuple[str, str, Change, str]] = [
    ("qwen3_moe", "mlp.experts.5.up_proj.weight", drop, r"of shape \[48, 96\] is missing"),
    ("qwen3_moe", "mlp.experts.5.up_proj.weight", fewer, r"have shape \[48, 96\], but has \[47, 9"),
    ("qwen3_moe", "mlp.experts.0.down_proj.weight", narrower, r"shape \[96, 48\], but has \[96, 4"),
    ("qwen3_moe", "mlp.gate.weight", fewer, r"must have shape \[7, 96\], but has \[6, 96\]"),
    ("qwen3_moe", "mlp.gate.weight", drop, r"of shape \[7, 96\] is missing"),
    ("qwen2_moe", "mlp.shared_expert.gate_proj.weight", fewer, r"shape \[72, 96\], but has \[71, "),
    ("qwen2_moe", "mlp.shared_expert_gate.weight", drop, r"of shape \[1, 96\] is missing"),
    (
        "minimax_m2",
        "block_sparse_moe.e_score_correction_bias",
        fewer,
        r"shape \[6\], but has \[5\]",
    ),
    ("minimax_m2", "block_sparse_moe.e_score_correction_bias", drop, r"of shape \[6\] is missing"),
    ("granitemoe", "block_sparse_moe.input_linear.weight", fewer, r"\[6, 320, 96\], but has \[5, "),
    ("granitemoe", "block_sparse_moe.output_linear.weight", narrower, r"\[6, 96, 160\], but has"),
    ("granitemoe", "block_sparse_moe.output_linear.weight", drop, r"experts.0.down\].* is missing"),
    ("gpt_oss", "self_attn.sinks", fewer, r"must have shape \[6\], but has \[5\]"),
    ("gpt_oss", "self_attn.sinks", drop, r"of shape \[6\] is missing"),
    ("gpt_oss", "mlp.router.bias", fewer, r"must have shape \[6\], but has \[5\]"),
    ("gpt_oss", "mlp.experts.gate_up_proj_scales", drop, r"_scales\[experts.0.gate\].* is missing"),
    ("gpt_oss", "mlp.experts.gate_up_proj_blocks", drop, r"_blocks\[experts.0.gate\].* is missing"),
    ("gpt_oss", "mlp.experts.down_proj_scales", fewer, r"\[6, 96, 5\], but has \[5, 96, 5\]"),
    (
        "gpt_oss",
        "mlp.experts.down_proj_scales",
        narrower,
        r"shape \[96, 5\], but has \[96, 4\]",
    ),
    (
        "gpt_oss",
        "mlp.experts.down_proj_blocks",
        narrower,
        r"shape \[96, 5, 16\], but has \[96",
    ),
    ("gpt_oss", "mlp.experts.down_proj_scales", as_numbers, r"stored as .*U8, but is F32"),
    (
        "gpt_oss",
        "mlp.experts.gate_up_proj_bias",
        fewer,
        r"shape \[6, 320\], but has \[5, 320\]",
    ),
]


@pytest.mark.parametrize(("family", "tensor", "change", "sentence"), FOLDERS)
def test_a_folder_with_damaged_experts_is_refused(
    folders: Callable[[str], Path],
    tmp_path: Path,
    family: str,
    tensor: str,
    change: Change,
    sentence: str,
) -> None:
    path = shutil.copytree(folders(family), tmp_path / family)
    tensors = load_file(path / "model.safetensors")
    name = f"model.layers.1.{tensor}"
    changed = change(tensors.pop(name))
    if changed is not None:
        tensors[name] = changed
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=f"^load: {family}(?s:.)*{sentence}") as caught:
        open_checkpoint(path)
    assert name.removesuffix("_scales").removesuffix("_blocks") in str(caught.value)


Array = Callable[[np.ndarray], np.ndarray | None]

FILES: list[tuple[str, str, Array, str]] = [
    ("qwen3_moe", "ffn_up_exps.weight", lambda x: None, r"up_exps.weight\[0\].* is missing"),
    ("qwen3_moe", "ffn_up_exps.weight", lambda x: x[1:], r"\[7, 48, 96\], but has \[6, 48, 96\]"),
    ("qwen3_moe", "ffn_down_exps.weight", lambda x: x[:, 1:], r"\[7, 96, 48\], but has \[7, 95, 4"),
    ("qwen3_moe", "ffn_gate_inp.weight", lambda x: x[1:], r"shape \[7, 96\], but has \[6, 96\]"),
    ("minimax_m2", "exp_probs_b.bias", lambda x: x[1:], r"must have shape \[6\], but has \[5\]"),
    ("gpt_oss", "attn_sinks.weight", lambda x: None, r"of shape \[6\] is missing"),
    ("gpt_oss", "ffn_gate_exps.bias", lambda x: x[1:], r"\[6, 160\], but has \[5, 160\]"),
]


@pytest.mark.parametrize(("family", "tensor", "change", "sentence"), FILES)
def test_a_gguf_file_with_damaged_experts_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    tensor: str,
    change: Array,
    sentence: str,
) -> None:
    name, write = f"blk.1.{tensor}", gguf.GGUFWriter.add_tensor

    def add_changed(self: gguf.GGUFWriter, at: str, numbers: np.ndarray) -> None:
        changed = change(numbers) if at == name else numbers
        if changed is not None:
            write(self, at, np.ascontiguousarray(changed))

    monkeypatch.setattr(gguf.GGUFWriter, "add_tensor", add_changed)
    path = write_family_gguf(build_family(family, num_hidden_layers=2), tmp_path / "m.gguf")
    with pytest.raises(CheckpointError, match=f"^load: m.gguf(?s:.)*{sentence}") as caught:
        open_checkpoint(path)
    assert name in str(caught.value)


def test_an_infinite_scale_of_mxfp4_is_refused(
    folders: Callable[[str], Path], tmp_path: Path
) -> None:
    path = shutil.copytree(folders("gpt_oss"), tmp_path / "gpt_oss")
    tensors = load_file(path / "model.safetensors")
    tensors["model.layers.1.mlp.experts.down_proj_scales"][3, 7, 2] = 255
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"layers\.1\.experts\.3\.down.*(finite|NaN)"):
        sinkstream.load(path, window=64)


def test_experts_of_gpt_oss_must_be_those_that_were_published_or_not_quantized(
    folders: Callable[[str], Path], tmp_path: Path
) -> None:
    path = shutil.copytree(folders("gpt_oss"), tmp_path / "gpt_oss")
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "awq", "bits": 4, "group_size": 32}
    (path / "config.json").write_text(json.dumps(config))
    sentence = (
        r'must have the `quant_method` "mxfp4" in `quantization_config` if model_type is "gpt'
    )
    with pytest.raises(CheckpointError, match=sentence):
        open_checkpoint(path)


def test_a_router_that_yields_nan_ends_only_the_sequence_that_meets_it(
    folders: Callable[[str], Path], tmp_path: Path
) -> None:
    path = shutil.copytree(folders("qwen3_moe"), tmp_path / "qwen3_moe")
    tensors = load_file(path / "model.safetensors")
    tensors["model.embed_tokens.weight"][7] = float("nan")
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    with sinkstream.load(path, window=64, max_sequences=2) as model:
        expected = model.generate([5, 6, 8], max_tokens=4, temperature=0, ignore_eos=True).token_ids
        with model.stream([5, 6, 8], max_tokens=4, temperature=0, ignore_eos=True) as stream:
            with pytest.raises(NonFiniteLogits):
                model.generate([5, 7, 8], max_tokens=4, temperature=0, ignore_eos=True)
            assert stream.result().token_ids == expected


@pytest.mark.parametrize(
    ("family", "tensor", "value"),
    [
        ("qwen3_moe", "mlp.gate.weight", float("inf")),
        ("qwen3_moe", "mlp.gate.weight", float("nan")),
        ("minimax_m2", "block_sparse_moe.e_score_correction_bias", float("nan")),
    ],
)
def test_a_router_with_infinite_numbers_or_nan_ends_a_sequence(
    folders: Callable[[str], Path], tmp_path: Path, family: str, tensor: str, value: float
) -> None:
    path = shutil.copytree(folders(family), tmp_path / family)
    tensors = load_file(path / "model.safetensors")
    tensors[f"model.layers.1.{tensor}"][3] = value
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    with sinkstream.load(path, window=64) as model, pytest.raises(NonFiniteLogits):
        model.generate([5, 6, 8], max_tokens=4, temperature=0, ignore_eos=True)
