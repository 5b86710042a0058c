"""Tiny checkpoints as quantized Hugging Face folders: AWQ, GPTQ, compressed-tensors and FP8.

Written from the formats' definitions with numpy; shares nothing with the readers. Codes, scales and
zero points are drawn to nearest, without calibration. `write` returns the model that a folder
holds: each weight is the exact scale · (code − zero point).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.data import tiny

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Tensors = dict[str, Any]
"""Torch tensors by name."""

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the outputs in a word, from its lowest four bits on


@dataclass(frozen=True)
class Scheme:
    """One way to quantize a folder."""

    method: str  # awq, gptq, gptq_v2, packed, fp8, fp8_packed
    bits: int = 4
    group: int = 32  # -1: a row; of fp8 -1: a row, 0: the matrix, otherwise square blocks
    symmetric: bool = False
    act_order: bool = False
    scale: str = "float16"
    model: str = "llama"
    ignore: tuple[str, ...] = ()  # parts of names of matrices that are not quantized
    config: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        kind = "sym" if self.symmetric else "asym"
        order = "-order" if self.act_order else ""
        return f"{self.method}-{self.bits}-{kind}-{self.group}{order}-{self.scale}-{self.model}"


SCHEMES = (
    Scheme("awq"),
    Scheme("awq", group=-1),
    Scheme("awq", group=64, model="llama-wide", ignore=("mlp.down_proj",)),
    Scheme("awq", group=128, scale="bfloat16", model="llama-wide"),
    Scheme("gptq", symmetric=True),
    Scheme("gptq", group=128, model="llama-wide"),
    Scheme("gptq", act_order=True, symmetric=True),
    Scheme("gptq", bits=8, group=64, act_order=True, model="llama-wide"),
    Scheme("gptq_v2", group=64, act_order=True, scale="bfloat16", model="llama-wide"),
    Scheme("gptq_v2", bits=8, group=-1),
    Scheme("gptq", bits=8, symmetric=True, scale="bfloat16"),
    Scheme("packed", symmetric=True, scale="bfloat16"),
    Scheme("packed", group=128, model="llama-wide", ignore=("self_attn.o_proj", "layers.0")),
    Scheme("packed", group=64, act_order=True, model="llama-wide"),
    Scheme("packed", bits=8, symmetric=True, group=-1, scale="bfloat16"),
    Scheme("packed", bits=8, group=128, model="llama-wide"),
    Scheme("packed", group=-1, model="llama-wide"),
    Scheme("fp8", bits=8, group=128, scale="float32", model="llama-wide"),
    Scheme("fp8", bits=8, group=128, scale="bfloat16", ignore=("self_attn.v_proj",)),
    Scheme("fp8", bits=8, group=0, scale="float32"),
    Scheme("fp8_packed", bits=8, group=-1, scale="float32"),
    Scheme("fp8_packed", bits=8, group=128, scale="float32", model="llama-wide"),
    Scheme("fp8_packed", bits=8, group=0, scale="bfloat16"),
)


def write(scheme: Scheme, folder: Path, model: tiny.TinyModel | None = None) -> tiny.TinyModel:
    """Write the folder, and return the model that it holds.

    `model`: what to quantize, if not the scheme's own.
    """
    from safetensors.torch import save_file

    stored, tensors, config = build(scheme, model)
    folder.mkdir(parents=True, exist_ok=True)
    if stored.tokenizer is not None:
        stored.tokenizer.write_folder(folder)
        config |= stored.tokenizer.end_ids()
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return stored


def build(
    scheme: Scheme, model: tiny.TinyModel | None = None
) -> tuple[tiny.TinyModel, Tensors, dict[str, Any]]:
    """Return the model that a folder holds, its tensors, and the content of its config.json."""
    import torch

    model = model or tiny.build(scheme.model)
    draw = np.random.Generator(np.random.PCG64(len(scheme.name)))
    stored: tiny.Weights = {}
    tensors: Tensors = {}
    for name, weight in model.weights.items():
        is_linear = name.endswith("_proj.weight")
        if not is_linear or any(part in name for part in scheme.ignore):
            tensors[name] = torch.from_numpy(weight).clone()
            stored[name] = weight
            continue
        quantize = _fp8 if scheme.method.startswith("fp8") else _integers
        found, stored[name] = quantize(scheme, weight, draw)
        module = name.removesuffix("weight")
        tensors |= {module + end: tensor.contiguous() for end, tensor in found.items()}
    config = {**model.config, "quantization_config": {**_config(scheme), **scheme.config}}
    return replace(model, weights=stored), tensors, config


def _config(scheme: Scheme) -> dict[str, Any]:
    ignored = [f"model.layers.{layer}.{part}" for part in scheme.ignore for layer in range(3)]
    if scheme.method == "awq":
        return {"quant_method": "awq", "bits": 4, "group_size": scheme.group, "version": "gemm",
                "zero_point": True, "modules_to_not_convert": ignored or None}  # fmt: skip
    if scheme.method.startswith("gptq"):
        return {"quant_method": "gptq", "bits": scheme.bits, "group_size": scheme.group,
                "desc_act": scheme.act_order, "sym": scheme.symmetric,
                "checkpoint_format": scheme.method}  # fmt: skip
    if scheme.method == "fp8":
        block = [scheme.group, scheme.group] if scheme.group > 0 else None
        return {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                "weight_block_size": block, "modules_to_not_convert": ignored}  # fmt: skip
    weights: dict[str, Any] = {"num_bits": scheme.bits, "symmetric": scheme.symmetric}
    if scheme.method == "fp8_packed":
        weights |= {"type": "float", "symmetric": True, "group_size": None}
        weights["strategy"] = {-1: "channel", 0: "tensor"}.get(scheme.group, "block")
        weights["block_structure"] = [scheme.group] * 2 if scheme.group > 0 else None
    else:
        weights |= {"type": "int", "strategy": "channel" if scheme.group == -1 else "group"}
        weights["group_size"] = None if scheme.group == -1 else scheme.group
        weights["actorder"] = "group" if scheme.act_order else None
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group},
            "format": "float-quantized" if scheme.method == "fp8_packed" else "pack-quantized",
            "ignore": [*ignored, "lm_head"]}  # fmt: skip


# ---- integers ----


@dataclass(frozen=True)
class _Coded:
    """A matrix: weight [row, col] is scales[row, g] · (codes[row, col] − zeros[row, g])."""

    codes: Integers  # [rows, cols], unsigned
    scales: Any  # [rows, groups], a torch tensor of 16 bits
    zeros: Integers  # [rows, groups]
    groups: Integers  # [cols]: the group g of each column


def _integers(scheme: Scheme, weight: Floats, draw: np.random.Generator) -> tuple[Tensors, Floats]:
    import torch

    rows, cols = weight.shape
    size = cols if scheme.group == -1 else scheme.group
    groups = np.arange(cols) // size
    if scheme.act_order:
        groups = draw.permutation(groups)
    top = 2**scheme.bits - 1
    scales = np.empty((rows, cols // size))
    zeros = np.full((rows, cols // size), (top + 1) // 2)
    for group in range(cols // size):
        part = weight[:, groups == group].astype(float)
        if scheme.symmetric:
            scales[:, group] = 2 * np.abs(part).max(axis=1) / top
        else:
            low, high = np.minimum(part.min(axis=1), 0), np.maximum(part.max(axis=1), 0)
            low[:: 5 + group] = 0  # a zero point of 0
            scales[:, group] = (high - low) / top
            zeros[:, group] = np.clip(np.rint(-low / scales[:, group]), 0, top)
    kept = torch.from_numpy(scales).to(getattr(torch, scheme.scale))
    exact = kept.float().numpy()
    codes = np.clip(np.rint(weight / exact[:, groups]) + zeros[:, groups], 0, top).astype(np.int64)
    coded = _Coded(codes, kept, zeros, groups)
    dequantized = exact[:, groups] * (codes - zeros[:, groups]).astype(np.float32)
    pack = {"awq": _awq, "packed": _packed}.get(scheme.method, _gptq)
    return pack(scheme, coded), dequantized.astype(np.float32)


def _words(fields: Integers, bits: int) -> Any:
    """Pack the last axis into words of 32 bits, the first field in the lowest bits."""
    import torch

    per_word = 32 // bits
    padded = np.pad(fields, [(0, 0)] * (fields.ndim - 1) + [(0, -fields.shape[-1] % per_word)])
    parts = padded.reshape(*padded.shape[:-1], -1, per_word).astype(np.uint64)
    words = (parts << (np.arange(per_word, dtype=np.uint64) * bits)).sum(axis=-1, dtype=np.uint64)
    return torch.from_numpy(words.astype(np.uint32).view(np.int32))


def _awq(scheme: Scheme, coded: _Coded) -> Tensors:
    def interleaved(fields: Integers) -> Any:  # [..., outputs]
        words = fields.reshape(*fields.shape[:-1], -1, 8)[..., list(_AWQ_ORDER)]
        return _words(words.reshape(fields.shape), 4)

    return {
        "qweight": interleaved(coded.codes.T),
        "qzeros": interleaved(coded.zeros.T),
        "scales": coded.scales.T,
    }


def _gptq(scheme: Scheme, coded: _Coded) -> Tensors:
    import torch

    zeros = _words(coded.zeros.T, scheme.bits).numpy().view(np.uint32)
    if scheme.method == "gptq":  # minus 1 in every field, with borrows
        zeros = zeros - np.uint32(0x11111111 if scheme.bits == 4 else 0x01010101)
    return {
        "qweight": _words(coded.codes, scheme.bits).T,
        "qzeros": torch.from_numpy(zeros.view(np.int32)),
        "scales": coded.scales.T,
        "g_idx": torch.from_numpy(coded.groups.astype(np.int32)),
    }


def _packed(scheme: Scheme, coded: _Coded) -> Tensors:
    import torch

    tensors: Tensors = {
        "weight_packed": _words(coded.codes, scheme.bits),
        "weight_scale": coded.scales,
        "weight_shape": torch.tensor(coded.codes.shape),
    }
    if not scheme.symmetric:
        tensors["weight_zero_point"] = _words(coded.zeros.T, scheme.bits).T
    if scheme.act_order:
        tensors["weight_g_idx"] = torch.from_numpy(coded.groups.astype(np.int32))
    return tensors


# ---- FP8 ----


def _fp8(scheme: Scheme, weight: Floats, draw: np.random.Generator) -> tuple[Tensors, Floats]:
    import torch

    rows, cols = weight.shape
    size = {-1: (1, cols), 0: (rows, cols)}.get(scheme.group, (scheme.group, scheme.group))
    down, across = -(-rows // size[0]), -(-cols // size[1])
    scales = np.empty((down, across))
    for i in range(down):
        for j in range(across):
            part = weight[i * size[0] : (i + 1) * size[0], j * size[1] : (j + 1) * size[1]]
            scales[i, j] = np.abs(part).max() / 448 * draw.uniform(1, 1.3)
    kept = torch.from_numpy(scales).to(getattr(torch, scheme.scale))
    exact = kept.float().numpy().repeat(size[0], axis=0)[:rows].repeat(size[1], axis=1)[:, :cols]
    codes = torch.from_numpy(weight / exact).clamp(-448, 448).to(torch.float8_e4m3fn)
    end = "weight_scale_inv" if scheme.method == "fp8" else "weight_scale"
    return {"weight": codes, end: kept.reshape(1) if scheme.group == 0 else kept}, (
        codes.float().numpy() * exact
    ).astype(np.float32)
