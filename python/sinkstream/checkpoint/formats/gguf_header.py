"""Reads the header of a GGUF file: its metadata, and where its tensors are.

Every declared size is checked against the file's size before it is used, so a hostile header costs
neither memory nor time. Knows nothing about models; does not read tensor data.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from sinkstream import _core
from sinkstream.checkpoint.bounded_file import File
from sinkstream.checkpoint.checkpoint import STORAGE_BLOCKS, TensorEntry
from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError

# 262,144 tokens as long as SmolLM2's and their 514,000 merges take 15 MB, and larger vocabularies
# have longer tokens: 16 MB, the limit of safetensors headers, is too tight.
MAX_HEADER_BYTES = 64 << 20
MAX_ENTRIES = 1 << 14  # metadata keys, and tensors; large files have 60 and 2,000
MAX_ARRAY_ELEMENTS = 1 << 21  # in all arrays together; that vocabulary needs 1.3 million
MAX_ALIGNMENT = 1 << 20
_FIRST_READ_BYTES = 1 << 20

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {  # value type -> struct letter
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "B", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_MIN_KEY_BYTES = 8 + 4 + 1  # length of the name, type, one byte of value
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8  # length of the name, rank, one size, type, offset

BLOCK_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
    10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS",
    17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16",
    31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 34: "TQ1_0", 35: "TQ2_0", 36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip
"""GGUF's type numbers. Types in `STORAGE_BLOCKS` can be loaded; the others are named in errors."""

_SUBSTITUTES = {
    "IQ1": "Q2_K", "IQ2": "Q2_K", "IQ3": "Q3_K_M or IQ4_XS", "TQ": "Q2_K", "NVFP4": "Q4_K_M",
    "Q4_0_": "Q4_0", "IQ4_NL_": "IQ4_NL",
}  # fmt: skip
"""For types that start so: the files of similar size that can be loaded."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The header of a GGUF file."""

    metadata: dict[str, Any]
    """Scalars as int, float, bool or str; arrays as lists of them."""
    tensors: dict[str, TensorEntry]
    """By name, in the file's order; extents are checked."""


def read_gguf_header(file: File) -> GgufHeader:
    """Read and check the header of a GGUF file, version 2 or 3, little-endian.

    Raises:
        CheckpointError: It is damaged, truncated, not a GGUF file, or uses an unsupported block
            type.
    """
    declared = Declarations()
    read_declarations(file, declared)
    _check_block_types(file, declared.tensors)
    tensors = _check_extents(file, declared.tensors, declared.end, declared.metadata)
    return GgufHeader(declared.metadata, tensors)


def read_declarations(file: File, found: Declarations) -> None:
    """Read a header, and leave block types and extents of tensors unchecked.

    After an error `found` has what was read before it.
    """
    cursor = _Cursor(file)
    _check_magic(cursor)
    tensor_count = cursor.count("the number of tensors", _MIN_TENSOR_BYTES, MAX_ENTRIES)
    key_count = cursor.count("the number of metadata keys", _MIN_KEY_BYTES, MAX_ENTRIES)
    for _ in range(key_count):
        key = cursor.string("a metadata key")
        if key in found.metadata:
            raise CheckpointError(f"load: {file.name} has the metadata key {quoted(key)} twice.")
        found.metadata[key] = cursor.value(f"metadata key {quoted(key)}")
    for _ in range(tensor_count):
        found.tensors.append(_read_declaration(cursor))
    found.end = cursor.position


def raw_metadata(file: File) -> dict[str, bytes]:
    """Return every metadata value as the file stores it: the number of its type, then its bytes."""
    cursor = _Cursor(file)
    _check_magic(cursor)
    cursor.count("the number of tensors", _MIN_TENSOR_BYTES, MAX_ENTRIES)
    found: dict[str, bytes] = {}
    for _ in range(cursor.count("the number of metadata keys", _MIN_KEY_BYTES, MAX_ENTRIES)):
        key = cursor.string("a metadata key")
        begin = cursor.position
        cursor.value(f"metadata key {quoted(key)}")
        found[key] = cursor.since(begin)
    return found


def _check_magic(cursor: _Cursor) -> None:
    name = cursor.file.name
    if cursor.file.size == 0:
        raise CheckpointError(f"load: {name} must be a GGUF file, but is empty.")
    if cursor.take(4, "its first four bytes") != _MAGIC:
        raise CheckpointError(f'load: {name} must be a GGUF file, but does not start with "GGUF".')
    version = cursor.u32("its version")
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
        hint = " It is big-endian; only little-endian files can be loaded." if swapped else ""
        raise CheckpointError(
            f"load: {name} must have GGUF version 2 or 3, but has {version}.{hint}"
        )


@dataclass(frozen=True, slots=True)
class Declaration:
    """One tensor as declared, not checked yet."""

    name: str
    sizes: tuple[int, ...]  # innermost first, as GGUF writes them
    block_type: int
    offset: int  # from the start of the tensor data


@dataclass(slots=True)
class Declarations:
    """What a header says, before the tensors are compared with the file."""

    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: list[Declaration] = field(default_factory=list)
    end: int = 0
    """The first byte after what was read of the header."""


def _read_declaration(cursor: _Cursor) -> Declaration:
    name = cursor.string("a tensor's name")
    what = f"tensor {quoted(name)}"
    rank = cursor.u32(what)
    if not 1 <= rank <= 4:
        raise CheckpointError(
            f"load: {what} of {cursor.file.name} must have 1 to 4 dimensions, but has {rank}."
        )
    sizes = tuple(cursor.u64(what) for _ in range(rank))
    return Declaration(name, sizes, cursor.u32(what), cursor.u64(what))


def _check_extents(
    file: File, declared: list[Declaration], header_end: int, metadata: dict[str, Any]
) -> dict[str, TensorEntry]:
    """Check that the tensors cover the rest of the file, without overlaps or gaps."""
    alignment = _alignment(file, metadata)
    data_begin = round_up(header_end, alignment)
    tensors: dict[str, TensorEntry] = {}
    expected = 0
    for tensor in sorted(declared, key=lambda tensor: tensor.offset):
        what = f"tensor {quoted(tensor.name)} of {file.name}"
        if tensor.name in tensors:
            raise CheckpointError(f"load: {what} is declared twice.")
        if tensor.offset != expected:
            raise CheckpointError(
                f"load: {what} must begin at byte {expected} of the tensor data, right after the "
                f"previous tensor, but begins at {tensor.offset}."
            )
        size = _tensor_bytes(file, tensor)
        end = expected + size
        if data_begin + end > file.size:
            raise CheckpointError(
                f"load: {what} must end at byte {data_begin + end}, but the file has only "
                f"{file.size} bytes. It is probably an incomplete download."
            )
        expected = round_up(end, alignment)
        kind, offset = BLOCK_TYPES[tensor.block_type], data_begin + tensor.offset
        shape = tensor.sizes[::-1]
        tensors[tensor.name] = TensorEntry(file, tensor.name, shape, kind, offset, size)
    if file.size > max(data_begin + expected, header_end):
        raise CheckpointError(
            f"load: {file.name} must end with its last tensor at byte {data_begin + expected}, "
            f"but has {file.size} bytes."
        )
    return {tensor.name: tensors[tensor.name] for tensor in declared}


def _check_block_types(file: File, declared: list[Declaration]) -> None:
    unknown = [
        tensor for tensor in declared if BLOCK_TYPES.get(tensor.block_type) not in STORAGE_BLOCKS
    ]
    if not unknown:
        return
    first = unknown[0]
    kind = BLOCK_TYPES.get(first.block_type, f"number {first.block_type}")
    others = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
    substitutes = [files for start, files in _SUBSTITUTES.items() if kind.startswith(start)]
    remedy = f" Use a {substitutes[0]} file of the model." if substitutes else ""
    raise CheckpointError(
        f"load: tensor {quoted(first.name)}{others} of {file.name} has block type {kind}; "
        f"the supported ones are {', '.join(sorted(STORAGE_BLOCKS))}.{remedy}"
    )


def _alignment(file: File, metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", 32)
    is_whole = isinstance(alignment, int) and not isinstance(alignment, bool)
    if not (is_whole and 1 <= alignment <= MAX_ALIGNMENT and alignment & (alignment - 1) == 0):
        raise CheckpointError(
            f"load: {file.name}: `general.alignment` must be a power of two of at most "
            f"{MAX_ALIGNMENT}, but is {quoted(alignment)}."
        )
    return int(alignment)


def _tensor_bytes(file: File, tensor: Declaration) -> int:
    """Return a tensor's size in bytes. Python's integers do not overflow."""
    numbers, size = STORAGE_BLOCKS[BLOCK_TYPES[tensor.block_type]]
    if 0 in tensor.sizes or tensor.sizes[0] % numbers:
        raise CheckpointError(
            f"load: tensor {quoted(tensor.name)} of {file.name} must have a row length that is a "
            f"positive multiple of {numbers}, but has shape {list(tensor.sizes[::-1])}."
        )
    blocks = tensor.sizes[0] // numbers
    for factor in tensor.sizes[1:]:
        blocks *= factor
    return blocks * size


def round_up(value: int, multiple: int) -> int:
    """Return the next multiple, or the value if it is one."""
    return -(-value // multiple) * multiple


class _Cursor:
    """Steps through the header, reading only as much of the file as the header needs."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.position = 0
        self._bytes = b""
        self._elements = 0

    def take(self, count: int, what: str) -> bytes:
        begin = self.position
        self._need(begin + count, what)
        self.position = begin + count
        return self._bytes[begin : self.position]

    def since(self, begin: int) -> bytes:
        """Return the bytes from `begin` up to the position."""
        return self._bytes[begin : self.position]

    def u32(self, what: str) -> int:
        return int(_U32.unpack(self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack(self.take(8, what))[0])

    def count(self, what: str, bytes_each: int, most: int | None = None) -> int:
        """Read a count of items that each take at least `bytes_each` bytes of the file."""
        count = self.u64(what)
        if most is not None and count > most:
            raise CheckpointError(
                f"load: {self.file.name}: {what} must be at most {most}, but is {count}."
            )
        room = (min(self.file.size, MAX_HEADER_BYTES) - self.position) // bytes_each
        if count > room:
            raise CheckpointError(
                f"load: {self.file.name}: {what} must be at most {room}, but is {count}. "
                "The file is too short for more."
            )
        return count

    def string(self, what: str) -> str:
        encoded = self.take(self.count(f"the length of {what}", 1), what)
        try:
            return encoded.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._not_utf8(what, error) from error

    def value(self, what: str) -> Any:
        kind = self.u32(what)
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self._array(what)
        return self._scalars(kind, 1, what)[0]

    def _array(self, what: str) -> list[Any]:
        kind = self.u32(what)
        count = self.count(f"the length of {what}", 8 if kind == _STRING else 1)
        self._elements += count
        if self._elements > MAX_ARRAY_ELEMENTS:
            raise CheckpointError(
                f"load: {self.file.name}: the arrays up to {what} must have at most "
                f"{MAX_ARRAY_ELEMENTS} elements in total, but have {self._elements}."
            )
        return self._strings(count, what) if kind == _STRING else self._scalars(kind, count, what)

    def _scalars(self, kind: int, count: int, what: str) -> list[Any]:
        letter = _SCALARS.get(kind)
        if letter is None:
            raise CheckpointError(
                f"load: {self.file.name}: the type of {what} must be one of "
                f"{sorted([*_SCALARS, _STRING, _ARRAY])} (no arrays of arrays), but is {kind}."
            )
        layout = struct.Struct(f"<{count}{letter}")
        values = list(layout.unpack(self.take(layout.size, what)))
        if kind != _BOOL:
            return values
        if not set(values) <= {0, 1}:
            raise CheckpointError(
                f"load: {self.file.name}: {what} must be true or false (1 or 0), but is "
                f"{max(values)}."
            )
        return [value == 1 for value in values]

    def _strings(self, count: int, what: str) -> list[str]:
        """Read an array of strings natively: a vocabulary with its merges has 100,000."""
        found: list[str] = []
        while len(found) < count:
            texts, self.position = _core.read_texts(self._bytes, self.position, count - len(found))
            found += texts
            if len(found) < count:  # the next one is not read yet, or is not UTF-8
                found.append(self._string(len(found), what))
        return found

    def _string(self, index: int, what: str) -> str:
        """Read one string of an array."""
        begin = self.position + 8
        self._need(begin, what)
        end = begin + _U64.unpack_from(self._bytes, self.position)[0]
        self._need(end, what)
        try:
            text = self._bytes[begin:end].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._not_utf8(f"element {index} of {what}", error) from error
        self.position = end
        return text

    def _need(self, end: int, what: str) -> None:
        """Read bytes [0, end) of the file, unless they are read already."""
        have = len(self._bytes)
        if end > have:
            if end > self.file.size:
                raise CheckpointError(
                    f"load: {self.file.name} must hold {what} up to byte {end}, but ends at byte "
                    f"{self.file.size}. It is probably an incomplete download."
                )
            if end > MAX_HEADER_BYTES:
                raise CheckpointError(
                    f"load: the header of {self.file.name} must have at most {MAX_HEADER_BYTES} "
                    f"bytes, but {what} ends at byte {end}."
                )
            wanted = max(
                end, 2 * have, _FIRST_READ_BYTES
            )  # doubling: few reads, copying in linear time
            wanted = min(wanted, self.file.size, MAX_HEADER_BYTES)
            self._bytes += self.file.read(have, wanted - have, what)

    def _not_utf8(self, what: str, error: UnicodeDecodeError) -> CheckpointError:
        return CheckpointError(
            f"load: {self.file.name}: {what} must be UTF-8 text, but byte {error.start} is not."
        )
