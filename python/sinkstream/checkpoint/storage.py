"""The block formats that weights may have in a file; csrc/kernels/pack.h reads the same."""

from __future__ import annotations

from typing import Literal

Storage = Literal["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"]
"""How a file stores numbers. The quantized types are GGUF's blocks of 32 numbers of a row."""

STORAGE_BLOCKS = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q8_0": (32, 34),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
}
"""For each storage type: numbers in a block, and bytes of a block."""


def row_bytes(storage: Storage, cols: int) -> int:
    """Return the bytes of one row of `cols` numbers (a multiple of the block size)."""
    numbers, size = STORAGE_BLOCKS[storage]
    return cols // numbers * size
