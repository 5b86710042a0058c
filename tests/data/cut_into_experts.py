"""Cuts the MLPs of a GGUF file into experts, so that all of them together compute the same.

Each expert has a share of the inner columns. The router is 0, so every expert has the weight
1 / experts, and all are chosen; `down` is multiplied by their number.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

_PARTS = ("ffn_gate", "ffn_up", "ffn_down")
_Q4_1 = np.dtype([("scales", np.float16, 2), ("codes", np.uint8, 16)])
_Q8_0 = np.dtype([("scales", np.float16, 1), ("codes", np.uint8, 32)])
_BLOCKS = {gguf.GGMLQuantizationType.Q4_1: _Q4_1, gguf.GGMLQuantizationType.Q8_0: _Q8_0}


def cut_into_experts(source: Path, target: Path, experts: int) -> Path:
    """Write a model of llama's architecture with experts, without a tokenizer.

    Their number is a power of 2, so that scales of blocks are multiplied without rounding.
    """
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    for field in reader.fields.values():
        if not field.name.startswith("llama."):  # without the tokenizer
            continue
        value = field.contents()
        if field.name == "llama.feed_forward_length":  # of an expert
            value //= experts
        writer.add_key_value(field.name, value, field.types[0])
    writer.add_expert_count(experts)
    writer.add_expert_used_count(experts)
    for tensor in reader.tensors:
        name, part = tensor.name, tensor.name.split(".")[-2]
        data, kind = np.asarray(tensor.data), tensor.tensor_type
        if part in _PARTS:
            data, name = _cut(data, kind, part, experts), name.replace(part, f"{part}_exps")
        writer.add_tensor(name, np.ascontiguousarray(data), raw_dtype=kind)
        if part == "ffn_gate":
            router = np.zeros((experts, int(tensor.shape[0])), np.float32)
            writer.add_tensor(tensor.name.replace(part, "ffn_gate_inp"), router)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _cut(
    data: npt.NDArray[np.uint8], kind: gguf.GGMLQuantizationType, part: str, experts: int
) -> npt.NDArray[np.uint8]:
    """Return the bytes [experts, rows, bytes of a row] of a matrix [rows, bytes of a row]."""
    if part != "ffn_down":
        return data.reshape(experts, -1, data.shape[1])
    blocks = np.ascontiguousarray(data).view(_BLOCKS[kind]).copy()
    blocks["scales"] *= np.float16(experts)
    assert np.isfinite(blocks["scales"]).all()
    shares = blocks.view(np.uint8).reshape(len(data), experts, -1)
    return shares.transpose(1, 0, 2)
