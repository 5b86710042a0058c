"""Experts of gpt-oss as its folders have them: rows of MXFP4, whose scales are other tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_MXFP4 = gguf.GGMLQuantizationType.MXFP4
_IS_EXPERTS = ("experts.gate_up_proj", "experts.down_proj")


def round_experts(model: PreTrainedModel) -> None:
    """Round the experts of a model, which has them transposed, to what MXFP4 can say."""
    for name, weight in model.named_parameters():
        if name.endswith(_IS_EXPERTS):
            rounded = gguf.dequantize(_quantized(weight), _MXFP4)
            weight.copy_(torch.from_numpy(rounded).transpose(1, 2))


def split_experts(folder: Path) -> None:
    """Replace the experts in a folder with their blocks and scales, as published."""
    file = folder / "model.safetensors"
    tensors = {}
    for name, tensor in load_file(file).items():
        if not name.endswith(_IS_EXPERTS):
            tensors[name] = tensor
            continue
        blocks = _quantized(tensor).reshape(*tensor.transpose(1, 2).shape[:2], -1, 17)
        tensors[f"{name}_scales"] = torch.from_numpy(np.ascontiguousarray(blocks[..., 0]))
        tensors[f"{name}_blocks"] = torch.from_numpy(_adjacent(blocks[..., 1:]))
    save_file(tensors, file, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (folder / "config.json").write_text(json.dumps(config))


def _quantized(weight: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return GGUF's blocks of the rows of a weight that is stored transposed."""
    rows = np.ascontiguousarray(weight.detach().transpose(1, 2).numpy())
    return gguf.quantize(rows, _MXFP4)


def _adjacent(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return bytes of two adjacent columns, from bytes of columns that are 16 apart."""
    columns = np.concatenate([codes & 15, codes >> 4], axis=-1)
    return np.asarray(columns[..., 0::2] | columns[..., 1::2] << 4, np.uint8)


def numbers_of(content: bytes, rows: int) -> npt.NDArray[np.float32]:
    """Return the numbers of a matrix from the bytes of its blocks and then of its scales."""
    codes, scales = np.split(np.frombuffer(content, np.uint8), [len(content) // 17 * 16])
    codes = codes.reshape(rows, -1, 16)
    columns = np.stack([codes & 15, codes >> 4], axis=-1).reshape(rows, -1, 32)
    halves = columns[..., :16] | columns[..., 16:] << 4
    blocks = np.concatenate([scales.reshape(rows, -1, 1), halves], axis=-1)
    return np.asarray(gguf.dequantize(blocks.reshape(rows, -1), _MXFP4), np.float32)
