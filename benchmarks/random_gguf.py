"""Writes models with random weights in real shapes as GGUF files, which every engine reads.

    python benchmarks/random_gguf.py qwen3-0.6b Q4_0 models/

The shapes are those of the named models; the weights are random, scaled so that activations stay
finite. Routers choose experts about evenly. Needs the extra `bench`.

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
    experts: int = 0  # in each layer, in place of an MLP; as wide as `inner`
    chosen: int = 0


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
    # Some layers of Qwen3-30B-A3B and of gpt-oss-20b, with a head of the same share.
    "qwen3-30b-a3b-layers": Shape(
        "qwen3moe", 4, 2048, 768, 32, 4, 128, 16_384, 1e6, True, False, experts=128, chosen=8
    ),
    "qwen3-30b-a3b": Shape(  # all of it: 18 GB in Q4_K_M
        "qwen3moe", 48, 2048, 768, 32, 4, 128, 151_936, 1e6, True, False, experts=128, chosen=8
    ),
    "gpt-oss-20b-layers": Shape(
        "gpt-oss", 4, 2880, 2880, 64, 8, 64, 32_768, 1.5e5, False, False, experts=32, chosen=4
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
_SUPER = 256  # weights of a block of a K type
_SUPER_POOL = 131_071  # such blocks; a prime
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


def _q4_k(random: np.random.Generator, cols: int) -> np.ndarray:
    """Two float16 factors, 8 scales and 8 minima of 6 bits, 4-bit codes: 7.5 stands for 0."""
    pool = np.empty((_SUPER_POOL, 144), dtype=np.uint8)
    factors = random.uniform(0.5, 1.5, _SUPER_POOL) / (4.6 * 42 * np.sqrt(cols))
    pool[:, :2] = factors.astype(np.float16)[:, None].view(np.uint8)
    pool[:, 2:4] = (7.5 * factors).astype(np.float16)[:, None].view(np.uint8)
    # Scales from 32 to 47, and the same minima: the upper bits of the last four are in the first.
    first = random.integers(32, 48, (_SUPER_POOL, 4), dtype=np.uint8)
    last = random.integers(0, 16, (_SUPER_POOL, 4), dtype=np.uint8)
    pool[:, 4:8] = pool[:, 8:12] = first | 0x80
    pool[:, 12:16] = last | last << 4
    pool[:, 16:] = np.frombuffer(random.bytes(_SUPER_POOL * 128), np.uint8).reshape(-1, 128)
    return pool


def _q6_k(random: np.random.Generator, cols: int) -> np.ndarray:
    """6-bit codes, of which 32 stands for 0, 16 scales of 8 bits, and a float16 factor."""
    pool = np.empty((_SUPER_POOL, 210), dtype=np.uint8)
    pool[:, :192] = np.frombuffer(random.bytes(_SUPER_POOL * 192), np.uint8).reshape(-1, 192)
    pool[:, 192:208] = random.integers(32, 48, (_SUPER_POOL, 16), dtype=np.uint8)
    factors = random.uniform(0.5, 1.5, _SUPER_POOL) / (18.5 * 40 * np.sqrt(cols))
    pool[:, 208:] = factors.astype(np.float16)[:, None].view(np.uint8)
    return pool


def _mxfp4(random: np.random.Generator, cols: int) -> np.ndarray:
    """An exponent of 8 bits, and numbers of 4 bits from -6 to 6."""
    pool = np.empty((_POOL, 17), dtype=np.uint8)
    square = 1 / (8.5625 * cols)  # of the scales, on average: that of the numbers is 8.5625
    exponent = np.floor(np.log(square) / np.log(4))
    is_larger = random.random(_POOL) < (square / 4**exponent - 1) / 3
    pool[:, 0] = 127 + int(exponent) + is_larger
    pool[:, 1:] = np.frombuffer(random.bytes(_POOL * 16), np.uint8).reshape(_POOL, -1)
    return pool


def _f32(random: np.random.Generator, cols: int) -> np.ndarray:
    pool = random.standard_normal((_POOL // 8, _BLOCK), dtype=np.float32)
    return (pool / np.float32(np.sqrt(cols))).view(np.uint8)


_SMALL = ("ffn_gate_inp", ".bias")


@dataclass(frozen=True)
class Tensor:
    """A matrix, or that of each expert; or a vector (`cols` is 0), of ones, or zeros as a bias."""

    name: str
    rows: int
    cols: int = 0
    experts: int = 0

    @property
    def full_name(self) -> str:
        """Return its name in a file."""
        return self.name if self.name.endswith((".bias", ".weight")) else f"{self.name}.weight"

    @property
    def all_rows(self) -> int:
        """Return the rows of all experts."""
        return self.rows * max(self.experts, 1)


Maker = Callable[[np.random.Generator, int], np.ndarray]  # uint8 [_POOL, bytes of a block]
TYPES: dict[str, tuple[gguf.GGMLQuantizationType, gguf.LlamaFileType, Maker]] = {
    "F16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16, _f16),
    "BF16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16, _bf16),
    "Q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0, _q8_0),
    "Q4_0": (gguf.GGMLQuantizationType.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0, _q4_0),
    "Q4_1": (gguf.GGMLQuantizationType.Q4_1, gguf.LlamaFileType.MOSTLY_Q4_1, _q4_1),
    "Q4_K": (gguf.GGMLQuantizationType.Q4_K, gguf.LlamaFileType.MOSTLY_Q4_K_S, _q4_k),
    "Q6_K": (gguf.GGMLQuantizationType.Q6_K, gguf.LlamaFileType.MOSTLY_Q6_K, _q6_k),
    "MXFP4": (gguf.GGMLQuantizationType.MXFP4, gguf.LlamaFileType.MOSTLY_MXFP4_MOE, _mxfp4),
    "F32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32, _f32),
}


def _in_q4_k_m(name: str) -> str:
    """Return the type of a matrix in the mix: half of some matrices have more bits."""
    part = name.partition(".")[2].partition(".")[2]
    is_half = part in ("attn_v", "ffn_down", "ffn_down_exps") and int(name.split(".")[1]) % 2 == 0
    return "Q6_K" if is_half or name == "output" else "Q4_K"


def _in_mxfp4(name: str) -> str:
    """Return the type of a matrix in gpt-oss's files."""
    return "MXFP4" if name.endswith("_exps") else "Q8_0"


MIXES: dict[str, tuple[Callable[[str], str], gguf.LlamaFileType]] = {
    "Q4_K_M": (_in_q4_k_m, gguf.LlamaFileType.MOSTLY_Q4_K_M),
    "MXFP4": (_in_mxfp4, gguf.LlamaFileType.MOSTLY_MXFP4_MOE),
}
KINDS = sorted({*TYPES, *MIXES})


def _type_of(kind: str, tensor: Tensor) -> str:
    """Return the type of a tensor. Routers, vectors and all that is small is not quantized."""
    if tensor.name.endswith(_SMALL) or not tensor.cols:
        return "F32"
    return MIXES[kind][0](tensor.name) if kind in MIXES else kind


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
        norm = "post_attention_norm" if shape.arch == "gpt-oss" else "ffn_norm"
        found.append(Tensor(at + norm, shape.hidden))
        end = "_exps" if shape.experts else ""
        if shape.experts:
            found.append(Tensor(at + "ffn_gate_inp", shape.experts, shape.hidden))
        if shape.arch == "gpt-oss":
            found += _biases(shape, at)
        found += [
            Tensor(f"{at}ffn_gate{end}", shape.inner, shape.hidden, shape.experts),
            Tensor(f"{at}ffn_up{end}", shape.inner, shape.hidden, shape.experts),
            Tensor(f"{at}ffn_down{end}", shape.hidden, shape.inner, shape.experts),
        ]
    found.append(Tensor("output_norm", shape.hidden))
    if not shape.is_tied:
        found.append(Tensor("output", shape.vocab, shape.hidden))
    return found


def _biases(shape: Shape, at: str) -> list[Tensor]:
    """Return the vectors of a layer of gpt-oss that are not norms."""
    query, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes = {"attn_q": query, "attn_k": kv, "attn_v": kv, "attn_output": shape.hidden,
             "ffn_gate_inp": shape.experts}  # fmt: skip
    of_experts = {"ffn_gate_exps": shape.inner, "ffn_up_exps": shape.inner,
                  "ffn_down_exps": shape.hidden}  # fmt: skip
    return [
        Tensor(at + "attn_sinks", shape.heads),
        *(Tensor(f"{at}{name}.bias", size) for name, size in sizes.items()),
        *(Tensor(f"{at}{name}.bias", size, 0, shape.experts) for name, size in of_experts.items()),
    ]


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
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.chosen)
        writer.add_expert_feed_forward_length(shape.inner)
    if shape.arch == "gpt-oss":
        writer.add_sliding_window(128)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(32.0)
        writer.add_rope_scaling_orig_ctx_len(4096)
    _add_tokenizer(writer, shape.vocab)


def _weights_of(kind: str) -> int:
    """Return the weights of a block of a pool."""
    return _SUPER if kind.endswith("_K") else _BLOCK


def write(name: str, kind: str, folder: Path) -> Path:
    """Return the path of a model, writing it if it does not exist."""
    path = folder / f"{name}-{kind}.gguf"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    shape = SHAPES[name]
    file_type = MIXES[kind][1] if kind in MIXES else TYPES[kind][1]
    random = np.random.default_rng(1)
    pools: dict[tuple[str, int], np.ndarray] = {}
    unfinished = path.with_suffix(".unfinished")
    writer = gguf.GGUFWriter(unfinished, shape.arch)
    _add_numbers(writer, shape, file_type)
    all_tensors = tensors(shape)
    for tensor in all_tensors:
        outer = [tensor.experts] if tensor.experts else []
        at, own = tensor.full_name, _type_of(kind, tensor)
        if not tensor.cols:
            shape_of, size = [*outer, tensor.rows], 4 * tensor.all_rows
            writer.add_tensor_info(at, shape_of, np.dtype(np.float32), size)
            continue
        quantization, _, make = TYPES[own]
        pool = pools.setdefault((own, tensor.cols), np.empty(0))
        if not pool.size:
            pool = pools[own, tensor.cols] = make(random, tensor.cols)
        row_bytes = tensor.cols // _weights_of(own) * pool.shape[1]
        matrix, size = [*outer, tensor.rows, row_bytes], tensor.all_rows * row_bytes
        if own == "F32":
            matrix[-1] //= 4
            writer.add_tensor_info(at, matrix, np.dtype(np.float32), size)
        else:
            writer.add_tensor_info(at, matrix, np.dtype(np.uint8), size, quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout is not None
    file = writer.fout[0]
    writer.write_padding(file, file.tell())
    for tensor in all_tensors:
        own = _type_of(kind, tensor)
        if not tensor.cols:
            value = 0 if tensor.name.endswith(".bias") else 1
            np.full(tensor.all_rows, value, dtype=np.float32).tofile(file)
        else:
            pool = pools[own, tensor.cols]
            blocks = tensor.all_rows * tensor.cols // _weights_of(own)
            for piece in _pieces(pool, int(random.integers(len(pool))), blocks):
                piece.tofile(file)
        writer.write_padding(file, file.tell())
    writer.close()
    unfinished.rename(path)
    return path


def main() -> None:
    """Write one file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(SHAPES))
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    print(write(args.name, args.kind, args.folder))


if __name__ == "__main__":
    main()
