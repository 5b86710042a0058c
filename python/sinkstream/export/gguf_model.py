"""A GGUF file to be written: its metadata, and where the numbers of its tensors come from."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sinkstream.checkpoint.checkpoint import Storage, row_bytes
from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError

_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9  # GGUF's numbers of types
# By the type of a list's elements: their number, and their letter in `struct`.
_ELEMENTS = {str: (_STRING, ""), int: (_I32, "i"), float: (_F32, "f"), bool: (_BOOL, "?")}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor to write."""

    name: str
    shape: tuple[int, ...]
    """Rows first; a vector has its numbers as rows. The matrices of experts have one more dimension
    before the rows."""
    storage: Storage
    """The storage of the rows that `read` returns: 16 or 32 bits."""
    read: Callable[[int, int], bytes]
    """Returns rows [begin, end), counted through all experts."""

    @property
    def rows(self) -> int:
        """Return the number of rows, of all experts together."""
        return math.prod(self.shape[:-1] or self.shape)

    @property
    def cols(self) -> int:
        """Return how many numbers a row has; 1 for a vector."""
        return self.shape[-1] if len(self.shape) > 1 else 1

    def bytes(self, storage: Storage) -> int:
        """Return its bytes in a storage type."""
        return self.rows * row_bytes(storage, self.cols)


@dataclass(frozen=True, slots=True)
class GgufModel:
    """What a GGUF file will hold."""

    name: str
    """The source's name, as errors show it."""
    metadata: dict[str, bytes]
    """Values as in a file: the number of the type, then the bytes."""
    tensors: tuple[GgufTensor, ...]
    alignment: int = 32
    """The alignment of the tensors' data, in bytes."""


def quantized_already(where: str, source: str, tensor: str, storage: str) -> CheckpointError:
    """Return the error for a matrix that has blocks; `source` is "file" or "folder"."""
    return CheckpointError(
        f"quantize: the matrices of {where} must be 16-bit or 32-bit, but {quoted(tensor)} is "
        f"{storage}. Use the original {source}: quantizing twice loses more accuracy."
    )


def encoded(value: Any) -> bytes:
    """Return a metadata value as GGUF stores it.

    Python's types decide: `int` becomes uint32, and `float` becomes float32. In a list, `int`
    becomes int32, `float` float32, and strings and booleans stay what they are.
    """
    if isinstance(value, list):
        kind, letter = _ELEMENTS[type(value[0])]
        if kind == _STRING:
            content = b"".join(map(string, value))
        else:
            content = struct.pack(f"<{len(value)}{letter}", *value)
        return struct.pack("<IIQ", _ARRAY, kind, len(value)) + content
    if isinstance(value, bool):
        return struct.pack("<IB", _BOOL, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + string(value)
    return struct.pack("<If", _F32, value) if isinstance(value, float) else _u32(value)


def string(text: str) -> bytes:
    """Return a string as GGUF stores it: its length, then UTF-8."""
    content = text.encode("utf-8")
    return struct.pack("<Q", len(content)) + content


def _u32(value: int) -> bytes:
    return struct.pack("<II", _U32, value)
