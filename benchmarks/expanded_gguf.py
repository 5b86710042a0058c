"""Writes a quantized GGUF file's weights as F16.

    python benchmarks/expanded_gguf.py IN.gguf OUT.gguf [--reorder]

With --reorder, the dimensions inside the model come in a random order: those of the hidden state,
of each value head and of the feed-forward. The model computes the same function, but no block of
the file survives: quantizing it costs what quantizing costs. In the original order, blocks of the
file's own type would round back to themselves. (A value head must be longer than a block.) Only
for llama's tensors. Needs `gguf`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Weight = npt.NDArray[np.float32]
Order = npt.NDArray[np.int64]


class Orders:
    """A random order of each group of dimensions, and the tensors that they apply to."""

    def __init__(self, reader: gguf.GGUFReader, seed: int = 0) -> None:
        def size(name: str) -> int:
            return int(reader.fields[f"llama.{name}"].contents())

        random = np.random.default_rng(seed)
        head = size("embedding_length") // size("attention.head_count")
        in_head = random.permutation(head)

        def heads(count: int) -> Order:
            return (np.arange(count)[:, None] * head + in_head).ravel()

        hidden = random.permutation(size("embedding_length"))
        inner = random.permutation(size("feed_forward_length"))
        values = heads(size("attention.head_count_kv"))
        attended = heads(size("attention.head_count"))
        # The order of a tensor's rows and of its columns.
        self._orders: dict[str, tuple[Order | None, Order | None]] = {
            "token_embd": (None, hidden),
            "output": (None, hidden),
            "attn_q": (None, hidden),
            "attn_k": (None, hidden),
            "attn_v": (values, hidden),
            "attn_output": (hidden, attended),
            "ffn_gate": (inner, hidden),
            "ffn_up": (inner, hidden),
            "ffn_down": (hidden, inner),
            "attn_norm": (hidden, None),
            "ffn_norm": (hidden, None),
            "output_norm": (hidden, None),
        }

    def apply(self, name: str, weight: Weight) -> Weight:
        """Return a tensor [rows] or [rows, columns] in the new order."""
        rows, columns = self._orders[name.removesuffix(".weight").rsplit(".", 1)[-1]]
        if rows is not None:
            weight = weight[rows]
        return weight if columns is None else weight[:, columns]


def expand(source: Path, target: Path, reorder: bool = False) -> None:
    """Write a file's matrices as F16 and its vectors as F32; copy the metadata."""
    reader = gguf.GGUFReader(source)
    arch = str(reader.fields["general.architecture"].contents())
    if reorder and arch != "llama":
        raise SystemExit(f"expanded_gguf: --reorder knows llama's tensors, not those of {arch}.")
    change: Callable[[str, Weight], Weight] = lambda _, weight: weight  # noqa: E731
    if reorder:
        change = Orders(reader).apply
    writer = gguf.GGUFWriter(target, arch)
    own = {"general.architecture", "general.file_type"}  # the writer's, or wrong afterwards
    for field in reader.fields.values():
        if field.name not in own and not field.name.startswith("GGUF."):
            kind: Any = field.types[0]
            items = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, sub_type=items)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for tensor in reader.tensors:
        numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        weight = numbers.reshape([int(size) for size in reversed(tensor.shape)])
        stored = np.float32 if weight.ndim == 1 else np.float16
        writer.add_tensor(tensor.name, change(tensor.name, weight).astype(stored))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--reorder", action="store_true")
    args = parser.parse_args()
    expand(args.source, args.target, args.reorder)


if __name__ == "__main__":
    main()
