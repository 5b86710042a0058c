"""The block formats that weights may have in a file, as csrc/kernels/pack.h lists them."""

from __future__ import annotations

from typing import TypeAlias

from sinkstream import _core

Storage: TypeAlias = str
"""How a file stores numbers: a key of `STORAGE_BLOCKS`. Quantized types are GGUF's blocks."""

STORAGE_BLOCKS: dict[Storage, tuple[int, int]] = _core.storages()
"""For each storage type: numbers in a block, and bytes of a block."""


def row_bytes(storage: Storage, cols: int) -> int:
    """Return the bytes of one row of `cols` numbers (a multiple of the block size)."""
    numbers, size = STORAGE_BLOCKS[storage]
    return cols // numbers * size
