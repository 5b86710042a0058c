"""The weights of a checkpoint as the reference takes them, whatever its family and format."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sinkstream.checkpoint.checkpoint import TensorsOnly, as_float32
from sinkstream.checkpoint.open_tensors import open_tensors
from tests.data.mxfp4_experts import numbers_of
from tests.reference.decoder import Decoder
from tests.reference.rope import Array


def decoder_of(path: Path) -> Decoder:
    """Return the literal decoder of a Hugging Face folder or a GGUF file."""
    opened = open_tensors(path)
    try:
        return Decoder(opened.spec, slot_weights(opened))
    finally:
        opened.source.close()


def slot_weights(opened: TensorsOnly) -> dict[str, Array]:
    """Read the weights of a checkpoint in float64: [rows, cols], or [rows] for vectors."""
    weights = {}
    for tensor in opened.tensors:
        slot = tensor.slot
        content = opened.source.read_rows(tensor, 0, slot.rows)
        if tensor.split is not None:
            numbers = numbers_of(content, slot.rows).astype(np.float64)
        else:
            numbers = _numbers(content, tensor.storage, slot.rows).astype(np.float64)
        shape = (slot.rows,) if slot.cols == 1 else (slot.rows, slot.cols)
        weights[slot.name] = numbers.reshape(shape) + tensor.added
    return weights


def _numbers(content: bytes, storage: str, rows: int) -> np.ndarray:
    if storage in ("F32", "F16", "BF16"):
        return as_float32(content, storage)
    import gguf

    blocks = np.frombuffer(content, np.uint8).reshape(rows, -1)
    return np.asarray(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[storage]))
