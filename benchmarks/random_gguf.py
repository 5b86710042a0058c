"""Writes models with random weights in real shapes as GGUF files, which every engine reads.

    python benchmarks/random_gguf.py qwen3-0.6b Q4_0 models/

The shapes are those of the named models; the weights are random, scaled so that activations stay
finite. Needs the extra `bench`.

A vocabulary of a real size gets a tokenizer, because OpenVINO refuses a file without one: all
bytes, one merge, an end token; every other token is its own number in brackets.

Random numbers are drawn once for each number of columns: a pool of about 33 million weights. Every
matrix is the pool, read cyclically from its own random offset. Matrices with equal columns
therefore hold the same numbers, shifted, and a matrix with more weights than the pool repeats it.
No two rows of a matrix are equal, because the length of the pool is prime. Matrices are written in
pieces, so memory stays below 300 MB for every model.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from tokenizers.pre_tokenizers import ByteLevel


@dataclass(frozen=True)
class Shape:
    """The sizes of a model, as in its config."""

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
    is_tied: bool = True  # whether the logits use the embedding's weights


SHAPES = {
    "tiny": Shape("llama", 2, 64, 96, 4, 2, 16, 160, 1e4, False, is_tied=False),
    "layer": Shape("llama", 1, 576, 1536, 9, 3, 64, 160, 1e4, False),  # one of SmolLM2's
    # Layers of sizes at which kernels change, or meet their limits: for tests.
    "heads-96": Shape("llama", 1, 192, 96, 2, 1, 96, 160, 1e4, False),
    "heads-256": Shape("llama", 1, 512, 96, 2, 1, 256, 160, 1e4, False),
    "hidden-12288": Shape("llama", 1, 12_288, 64, 1, 1, 64, 160, 1e4, False),
    # Some layers of Phi-3-mini's, Gemma-7b's and Llama-3.1-8B's sizes, one of Mistral-Large's: for
    # figures.
    "phi-3-layers": Shape("llama", 4, 3072, 8192, 32, 32, 96, 32_000, 1e4, False),
    "gemma-7b-layers": Shape("llama", 4, 3072, 24_576, 16, 16, 256, 32_000, 1e4, False),
    "llama-8b-layers": Shape(
        "llama", 8, 4096, 14_336, 32, 8, 128, 128_256, 5e5, False, is_tied=False
    ),
    "mistral-large-layer": Shape("llama", 1, 12_288, 28_672, 96, 8, 128, 32_000, 1e6, False),
    "smollm2-135m": Shape("llama", 30, 576, 1536, 9, 3, 64, 49_152, 1e5, False),
    "llama-8x2048": Shape("llama", 8, 2048, 8192, 32, 8, 64, 32_000, 1e4, False, is_tied=False),
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 3072, 16, 8, 128, 151_936, 1e6, True),
    "llama-3.2-1b": Shape("llama", 16, 2048, 8192, 32, 8, 64, 128_256, 5e5, False),
    "llama-3.1-8b": Shape(
        "llama", 32, 4096, 14_336, 32, 8, 128, 128_256, 5e5, False, is_tied=False
    ),
}
CONTEXT = 8192
_BLOCK = 32  # weights of a block; types without blocks are cut into blocks of this size, too
_POOL = 1_048_583  # blocks; a prime
_MERGE = ("t", "h")
_END = "<|endoftext|>"


def _bf16(random: np.random.Generator, cols: int) -> np.ndarray:
    pool = np.empty((_POOL, _BLOCK), dtype=np.uint16)
    for part in np.array_split(
        pool, 16
    ):  # all floats at once would need twice the memory of the pool
        floats = random.standard_normal(part.shape, dtype=np.float32)
        floats /= np.float32(np.sqrt(cols))
        part[:] = floats.view(np.uint32) >> 16
    return pool.view(np.uint8)


def _f16(random: np.random.Generator, cols: int) -> np.ndarray:
    pool = np.empty((_POOL, _BLOCK), dtype=np.float16)
    for part in np.array_split(pool, 16):
        floats = random.standard_normal(part.shape, dtype=np.float32)
        part[:] = floats / np.float32(np.sqrt(cols))
    return pool.view(np.uint8)


def _blocks(random: np.random.Generator, cols: int, code_bytes: int, spread: float) -> np.ndarray:
    """Blocks of 32 weights: a float16 scale, then codes with standard deviation `spread`."""
    pool = np.empty((_POOL, 2 + code_bytes), dtype=np.uint8)
    scales = random.uniform(0.5, 1.5, _POOL) / (spread * np.sqrt(cols))
    pool[:, :2] = scales.astype(np.float16)[:, None].view(np.uint8)
    pool[:, 2:] = np.frombuffer(random.bytes(_POOL * code_bytes), np.uint8).reshape(_POOL, -1)
    return pool


def _q8_0(random: np.random.Generator, cols: int) -> np.ndarray:
    return _blocks(random, cols, 32, 74.0)


def _q4_0(random: np.random.Generator, cols: int) -> np.ndarray:
    return _blocks(random, cols, 16, 4.6)


def _q4_1(random: np.random.Generator, cols: int) -> np.ndarray:
    """As Q4_0, with a float16 minimum after the scale, such that the mean code stands for 0."""
    signed = _q4_0(random, cols)
    minima = signed[:, :2].copy().view(np.float16) * np.float16(-7.5)
    return np.concatenate([signed[:, :2], minima.view(np.uint8), signed[:, 2:]], axis=1)


Maker = Callable[[np.random.Generator, int], np.ndarray]  # uint8 [_POOL, bytes of a block]
TYPES: dict[str, tuple[gguf.GGMLQuantizationType, gguf.LlamaFileType, Maker]] = {
    "F16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16, _f16),
    "BF16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16, _bf16),
    "Q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0, _q8_0),
    "Q4_0": (gguf.GGMLQuantizationType.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0, _q4_0),
    "Q4_1": (gguf.GGMLQuantizationType.Q4_1, gguf.LlamaFileType.MOSTLY_Q4_1, _q4_1),
}


@dataclass(frozen=True)
class Tensor:
    """A matrix, or the weights of a norm (`cols` is 0), which are ones."""

    name: str
    rows: int
    cols: int = 0


def tensors(shape: Shape) -> list[Tensor]:
    """Return all tensors of a model, in the order of the file."""
    query, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    found = [Tensor("token_embd", shape.vocab, shape.hidden)]
    for layer in range(shape.layers):
        at = f"blk.{layer}."
        found += [
            Tensor(at + "attn_norm", shape.hidden),
            Tensor(at + "attn_q", query, shape.hidden),
            Tensor(at + "attn_k", kv, shape.hidden),
            Tensor(at + "attn_v", kv, shape.hidden),
            Tensor(at + "attn_output", shape.hidden, query),
        ]
        if shape.has_qk_norm:
            found += [Tensor(at + f"attn_{which}_norm", shape.head_dim) for which in "qk"]
        found += [
            Tensor(at + "ffn_norm", shape.hidden),
            Tensor(at + "ffn_gate", shape.inner, shape.hidden),
            Tensor(at + "ffn_up", shape.inner, shape.hidden),
            Tensor(at + "ffn_down", shape.hidden, shape.inner),
        ]
    found.append(Tensor("output_norm", shape.hidden))
    if not shape.is_tied:
        found.append(Tensor("output", shape.vocab, shape.hidden))
    return found


def _pieces(pool: np.ndarray, begin: int, count: int) -> Iterator[np.ndarray]:
    """Yield `count` blocks of the pool, cyclically, from `begin` on."""
    while count > 0:
        piece = pool[begin : begin + count]
        yield piece
        begin, count = 0, count - len(piece)


def _add_tokenizer(writer: gguf.GGUFWriter, vocab: int) -> None:
    tokens = [*sorted(ByteLevel.alphabet()), "".join(_MERGE), _END]
    if vocab < 2 * len(tokens):
        writer.add_vocab_size(vocab)
        writer.add_tokenizer_model("no_vocab")
        return
    end = tokens.index(_END)
    tokens += [f"[{i}]" for i in range(len(tokens), vocab)]
    types = [gguf.TokenType.NORMAL] * vocab
    types[end] = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(_MERGE)])
    writer.add_eos_token_id(end)


def _add_numbers(writer: gguf.GGUFWriter, shape: Shape, file_type: gguf.LlamaFileType) -> None:
    writer.add_context_length(CONTEXT)
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
    writer.add_file_type(file_type)
    _add_tokenizer(writer, shape.vocab)


def write(name: str, kind: str, folder: Path) -> Path:
    """Return the path of a model, writing it if it does not exist."""
    path = folder / f"{name}-{kind}.gguf"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    shape = SHAPES[name]
    quantization, file_type, make = TYPES[kind]
    random = np.random.default_rng(1)
    pools: dict[int, np.ndarray] = {}
    unfinished = path.with_suffix(".unfinished")
    writer = gguf.GGUFWriter(unfinished, shape.arch)
    _add_numbers(writer, shape, file_type)
    all_tensors = tensors(shape)
    for tensor in all_tensors:
        at = f"{tensor.name}.weight"
        if not tensor.cols:
            writer.add_tensor_info(at, [tensor.rows], np.dtype(np.float32), 4 * tensor.rows)
            continue
        if tensor.cols not in pools:
            pools[tensor.cols] = make(random, tensor.cols)
        row_bytes = tensor.cols // _BLOCK * pools[tensor.cols].shape[1]
        matrix = [tensor.rows, row_bytes]
        count = tensor.rows * row_bytes
        writer.add_tensor_info(at, matrix, np.dtype(np.uint8), count, quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout is not None
    file = writer.fout[0]
    writer.write_padding(file, file.tell())
    for tensor in all_tensors:
        if not tensor.cols:
            np.ones(tensor.rows, dtype=np.float32).tofile(file)
        else:
            blocks = tensor.rows * tensor.cols // _BLOCK
            for piece in _pieces(pools[tensor.cols], int(random.integers(_POOL)), blocks):
                piece.tofile(file)
        writer.write_padding(file, file.tell())
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
