"""Writes models of random weights in real shapes, as GGUF, so that every engine reads one file.

    python tests/bench/random_gguf.py qwen3-0.6b Q4_0 models/

The shapes are those of the models that the names say; the weights are random blocks, of a size that
keeps activations finite; the file has no tokenizer. Needs the extra `bench`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np


@dataclass(frozen=True)
class Shape:
    """A model's numbers, as its config has them."""

    arch: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    base: float
    has_qk_norm: bool


SHAPES = {
    "smollm2-135m": Shape("llama", 30, 576, 1536, 9, 3, 64, 49_152, 1e5, False),
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 3072, 16, 8, 128, 151_936, 1e6, True),
    "llama-3.2-1b": Shape("llama", 16, 2048, 8192, 32, 8, 64, 128_256, 5e5, False),
}
_CONTEXT = 8192
_CHUNK_ROWS = 8192  # rows made at once


def _bf16(random: np.random.Generator, rows: int, cols: int) -> np.ndarray:
    floats = random.standard_normal((rows, cols), dtype=np.float32) / np.sqrt(cols)
    return (floats.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


def _blocks(
    random: np.random.Generator, rows: int, cols: int, code_bytes: int, spread: float
) -> np.ndarray:
    """Blocks of 32 weights: a float16 scale, then codes, whose standard deviation is `spread`."""
    blocks = np.empty((rows, cols // 32, 2 + code_bytes), dtype=np.uint8)
    scales = random.uniform(0.5, 1.5, (rows, cols // 32)) / (spread * np.sqrt(cols))
    blocks[..., :2] = scales.astype(np.float16)[..., None].view(np.uint8)
    blocks[..., 2:] = random.integers(0, 256, (rows, cols // 32, code_bytes), dtype=np.uint8)
    return blocks.reshape(rows, -1)


def _q8_0(random: np.random.Generator, rows: int, cols: int) -> np.ndarray:
    return _blocks(random, rows, cols, 32, 74.0)


def _q4_0(random: np.random.Generator, rows: int, cols: int) -> np.ndarray:
    return _blocks(random, rows, cols, 16, 4.6)


Maker = Callable[[np.random.Generator, int, int], np.ndarray]
TYPES: dict[str, tuple[gguf.GGMLQuantizationType, gguf.LlamaFileType, Maker]] = {
    "BF16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16, _bf16),
    "Q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0, _q8_0),
    "Q4_0": (gguf.GGMLQuantizationType.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0, _q4_0),
}


def write(name: str, kind: str, folder: Path) -> Path:
    """Write a model, or leave the one that is there, and return its path."""
    path = folder / f"{name}-{kind}.gguf"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    shape = SHAPES[name]
    quantization, file_type, make = TYPES[kind]
    random = np.random.default_rng(1)
    unfinished = path.with_suffix(".unfinished")
    writer = gguf.GGUFWriter(unfinished, shape.arch)
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.inner)
    writer.add_block_count(shape.layers)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.base)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(shape.vocab)
    writer.add_file_type(file_type)
    writer.add_tokenizer_model("no_vocab")

    def add_matrix(tensor: str, rows: int, cols: int) -> None:
        parts = [
            make(random, min(_CHUNK_ROWS, rows - begin), cols)
            for begin in range(0, rows, _CHUNK_ROWS)
        ]
        writer.add_tensor(f"{tensor}.weight", np.concatenate(parts), raw_dtype=quantization)

    def add_norm(tensor: str, size: int) -> None:
        writer.add_tensor(f"{tensor}.weight", np.ones(size, dtype=np.float32))

    add_matrix("token_embd", shape.vocab, shape.hidden)
    query, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for layer in range(shape.layers):
        at = f"blk.{layer}."
        add_norm(at + "attn_norm", shape.hidden)
        add_matrix(at + "attn_q", query, shape.hidden)
        add_matrix(at + "attn_k", kv, shape.hidden)
        add_matrix(at + "attn_v", kv, shape.hidden)
        add_matrix(at + "attn_output", shape.hidden, query)
        if shape.has_qk_norm:
            add_norm(at + "attn_q_norm", shape.head_dim)
            add_norm(at + "attn_k_norm", shape.head_dim)
        add_norm(at + "ffn_norm", shape.hidden)
        add_matrix(at + "ffn_gate", shape.inner, shape.hidden)
        add_matrix(at + "ffn_up", shape.inner, shape.hidden)
        add_matrix(at + "ffn_down", shape.hidden, shape.inner)
    add_norm("output_norm", shape.hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=True)
    writer.close()
    unfinished.rename(path)
    return path


def main() -> None:
    """Write one file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(SHAPES))
    parser.add_argument("kind", choices=sorted(TYPES))
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    print(write(args.name, args.kind, args.folder))


if __name__ == "__main__":
    main()
