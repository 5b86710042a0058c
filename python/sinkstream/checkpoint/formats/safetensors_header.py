"""Reads the header of a safetensors file: its tensors, and where they are.

Every declared size is checked against the file's size before it is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sinkstream.checkpoint.bounded_file import File, parse_json
from sinkstream.checkpoint.checkpoint import TensorEntry
from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError

MAX_HEADER_BYTES = 16 << 20
_MAX_RANK = 8
_MAX_COUNT = 2**63 - 1  # JSON integers are unbounded; the format's are not

DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E4M3FNUZ": 1, "F8_E5M2": 1, "F8_E5M2FNUZ": 1,
    "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8,
    "U64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
"""Bytes of one number. Includes types that cannot be loaded: a file may hold other buffers."""


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """The header of a safetensors file."""

    tensors: dict[str, TensorEntry]
    """By name. Together they cover the rest of the file exactly."""
    metadata: Any
    """The value of `__metadata__`, unchecked; None if absent."""
    content: bytes
    """The bytes it was read from, including the length prefix: the file up to the tensors."""


def read_safetensors_header(file: File) -> dict[str, TensorEntry]:
    """Read and check the header of a safetensors file.

    Returns:
        The tensors by name. Together they cover the file exactly.

    Raises:
        CheckpointError: The file is damaged, truncated, or not a safetensors file.
    """
    return read_whole_header(file).tensors


def read_whole_header(file: File) -> SafetensorsHeader:
    """Read and check the header, and return its metadata and bytes as well."""
    if file.size < 8:
        raise CheckpointError(
            f"{file.where}: {file.name} must be a safetensors file, but has only {file.size} bytes."
        )
    prefix = file.read(0, 8, "the length of its header")
    length = int.from_bytes(prefix, "little")
    limit = min(MAX_HEADER_BYTES, file.size - 8)
    if not 2 <= length <= limit:
        raise CheckpointError(
            f"{file.where}: {file.name}: the header of a safetensors file must have from 2 to "
            f"{limit} bytes, but has {length}. It is incomplete, or another kind of file."
        )
    text = file.read(8, length, "its header")
    declared = parse_json(text, f"the header of {file.name}", file.where)
    metadata = declared.pop("__metadata__", None)
    tensors = [_read_declaration(file, name, fields) for name, fields in declared.items()]
    return SafetensorsHeader(_check_extents(file, tensors, 8 + length), metadata, prefix + text)


def _read_declaration(file: File, name: str, fields: Any) -> tuple[TensorEntry, int]:
    """Return a tensor, with its offset from the start of the tensor data, and its size in bytes."""
    where, what = file.where, f"tensor {quoted(name)} of {file.name}"
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(
            f"{where}: {what} must be described by dtype, shape and data_offsets, but is "
            f"{quoted(fields)}."
        )
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise CheckpointError(
            f"{where}: {what} has dtype {quoted(dtype)}; "
            f"the supported ones are {', '.join(sorted(DTYPE_BYTES))}."
        )
    if not _is_counts(shape) or len(shape) > _MAX_RANK:
        raise CheckpointError(
            f"{where}: the shape of {what} must be a list of at most {_MAX_RANK} sizes, but is "
            f"{quoted(shape)}."
        )
    size = math.prod(shape) * DTYPE_BYTES[dtype]
    if not _is_counts(offsets) or len(offsets) != 2 or offsets[1] - offsets[0] != size:
        raise CheckpointError(
            f"{where}: the data_offsets of {what} must be two numbers that are {size} apart, as "
            f"its shape {list(shape)} says, but are {quoted(offsets)}."
        )
    return TensorEntry(file, name, tuple(shape), dtype, offsets[0], size), size


def _is_counts(value: Any) -> bool:
    return isinstance(value, list) and all(
        type(item) is int and 0 <= item <= _MAX_COUNT for item in value
    )


def _check_extents(
    file: File, declared: list[tuple[TensorEntry, int]], data_begin: int
) -> dict[str, TensorEntry]:
    """Check that the tensors cover the rest of the file, without overlaps or gaps."""
    tensors: dict[str, TensorEntry] = {}
    expected = 0
    for tensor, size in sorted(declared, key=lambda entry: (entry[0].offset, entry[1])):
        where, what = file.where, f"tensor {quoted(tensor.name)} of {file.name}"
        if tensor.offset != expected:
            raise CheckpointError(
                f"{where}: {what} must begin at byte {expected} of the tensor data, right after "
                f"the previous tensor, but begins at {tensor.offset}."
            )
        expected += size
        if data_begin + expected > file.size:
            raise CheckpointError(
                f"{where}: {what} must end at byte {data_begin + expected}, but the file has only "
                f"{file.size} bytes. It was probably truncated by an incomplete copy."
            )
        tensors[tensor.name] = TensorEntry(
            file, tensor.name, tensor.shape, tensor.kind, data_begin + tensor.offset, size
        )
    if data_begin + expected != file.size:
        raise CheckpointError(
            f"{file.where}: {file.name} must end with its last tensor at byte "
            f"{data_begin + expected}, but has {file.size} bytes."
        )
    return tensors
