"""Every block format stands for the numbers that two other readers find in it, bit for bit."""

from __future__ import annotations

import gguf
import libgguf
import numpy as np
import numpy.typing as npt
import pytest

from sinkstream import _core
from sinkstream.checkpoint.checkpoint import STORAGE_BLOCKS

QUANTIZED = [name for name, (numbers, _) in STORAGE_BLOCKS.items() if numbers > 1]
TABLES = [name for name, supported in _core.kernel_tables() if supported]
# Where a block has float16; MXFP4 has none, and a power of two in its first byte.
_HALVES = {
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "Q4_1": (0, 2), "Q5_1": (0, 2), "MXFP4": (),
}  # fmt: skip


def random_blocks(storage: str, count: int) -> npt.NDArray[np.uint8]:
    """Draw blocks with any bits, [count, bytes of a block], but with finite scales."""
    draw = np.random.Generator(np.random.PCG64(len(storage)))
    blocks = draw.integers(0, 256, (count, STORAGE_BLOCKS[storage][1]), dtype=np.uint8)
    for at in _HALVES.get(storage, (0,)):
        halves = draw.normal(size=count) * 10.0 ** draw.integers(-7, 2, count)
        blocks[:, at : at + 2] = halves.astype("<f2")[:, None].view(np.uint8)
    if storage == "MXFP4":  # 0 and 1 are denormals, which kernels flush; weights of 253 overflow
        blocks[:, 0] = draw.integers(2, 253, count)
    return blocks


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("storage", QUANTIZED)
def test_panels_hold_the_numbers_that_gguf_and_ggml_read(storage: str, table: str) -> None:
    blocks = random_blocks(storage, 3 * 40).reshape(40, -1)
    cols = 3 * STORAGE_BLOCKS[storage][0]
    kind = gguf.GGMLQuantizationType[storage]
    unpacked = _core.testing.unpack_rows(storage, blocks.tobytes(), cols, table)
    found = np.frombuffer(unpacked, np.uint32).reshape(40, cols)
    for other in (gguf.quants.dequantize(blocks, kind), libgguf.dequantize_rows(blocks, int(kind))):
        expected = np.ascontiguousarray(other, np.float32).view(np.uint32).reshape(40, cols)
        np.testing.assert_array_equal(found, expected)


def test_every_type_has_the_block_that_gguf_gives_it() -> None:
    for name, block in STORAGE_BLOCKS.items():
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]] == block, name


def test_rows_that_are_not_whole_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="must be rows of whole Q4_K blocks, but has 144 bytes"):
        _core.testing.unpack_rows("Q4_K", bytes(144), 128)
