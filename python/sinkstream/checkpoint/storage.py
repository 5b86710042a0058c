"""The block formats that weights may have in a file, as csrc/kernels/pack.h lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from sinkstream import _core

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Storage: TypeAlias = str
"""How a file stores numbers: a key of `STORAGE_BLOCKS` or of `SPLIT_STORAGES`."""

STORAGE_BLOCKS: dict[Storage, tuple[int, int]] = _core.storages()
"""For each storage type of single tensors: numbers in a block, and bytes of a block. Quantized
types are GGUF's blocks."""

SPLIT_STORAGES: tuple[Storage, ...] = ("INT4", "INT8", "FP8")
"""Types of matrices whose codes, scales and zero points are tensors of their own."""

_FALLBACKS: dict[Storage, Storage] = {
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "IQ4_XS": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}  # fmt: skip
"""llama.cpp's, for rows that are not whole blocks of 256: the next type with blocks of 32."""


def has_blocks(storage: Storage, cols: int) -> bool:
    """Return whether rows of `cols` numbers are whole blocks."""
    return cols % STORAGE_BLOCKS[storage][0] == 0


def block_type(storage: Storage, cols: int) -> Storage | None:
    """Return the type in which to store rows of `cols` numbers when `storage` is wanted.

    That is `storage` if rows are whole blocks of it, or else its fallback; None if no type fits.
    """
    for wanted in (storage, _FALLBACKS.get(storage)):
        if wanted is not None and has_blocks(wanted, cols):
            return wanted
    return None


def row_bytes(storage: Storage, cols: int) -> int:
    """Return the bytes of one row of `cols` numbers (a multiple of the block size)."""
    numbers, size = STORAGE_BLOCKS[storage]
    return cols // numbers * size


def as_float32(content: bytes, storage: Storage) -> npt.NDArray[np.float32]:
    """Return numbers that a file stores as F32, F16 or BF16, exactly."""
    import numpy as np

    if storage == "BF16":
        return (np.frombuffer(content, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(content, "<f2" if storage == "F16" else "<f4").astype("<f4")
