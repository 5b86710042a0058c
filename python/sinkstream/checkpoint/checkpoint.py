"""A checkpoint as the loader sees it, whatever format it came from: block formats, tensors, text.

csrc/kernels/pack.h lists the block formats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from sinkstream import _core
from sinkstream.checkpoint.bounded_file import File
from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.spec import DecoderSpec, WeightSlot
from sinkstream.errors import CheckpointError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from tokenizers import Tokenizer

Storage: TypeAlias = str
"""How a file stores numbers: a key of `STORAGE_BLOCKS` or of `SPLIT_STORAGES`."""

STORAGE_BLOCKS: dict[Storage, tuple[int, int]] = _core.storages()
"""For each storage type of single tensors: numbers in a block, and bytes of a block. Quantized
types are GGUF's blocks."""

SPLIT_STORAGES: tuple[Storage, ...] = ("INT4", "INT8", "FP8")
"""Types of matrices whose codes, scales and zero points are tensors of their own."""

_SHORT_RUN = 4096  # bytes: shorter runs are read with what lies between them

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


@dataclass(frozen=True, slots=True)
class SplitMatrix:
    """A quantized matrix whose codes, scales and zero points are tensors of their own.

    csrc/kernels/pack_split.h has the layouts.
    """

    layout: Literal["awq", "columns", "gptq", "rows"]
    tensors: tuple[str, ...]
    """The names of the tensors of codes, of scales, and of zero points if there are any."""
    file_bytes: int
    """The bytes of these tensors."""
    scale_type: Storage
    group: int
    """Columns that share a scale."""
    scale_rows: int = 1
    """Rows that share it."""
    zero_point: int = 0
    """Of all weights; with a tensor of zero points, added to every field of its words."""
    order: bytes = field(default=b"", repr=False)
    """int32: the columns in the order of their groups. Empty if they have that order."""


@dataclass(frozen=True, slots=True)
class TensorSource:
    """The tensor, or the tensors, that fill one weight slot."""

    slot: WeightSlot
    tensor: str
    """The tensor's name in the checkpoint, as errors show it; of a split matrix, its codes'."""
    storage: Storage
    """The storage in the file."""
    rounded_to: Storage | None = None
    """If given, the storage to which its rows are quantized as they are read."""
    split: SplitMatrix | None = None
    """How it is stored, if its codes and scales are tensors of their own."""
    added: float = 0.0
    """The constant added to each number of a vector as it is read."""
    is_transposed: bool = False
    """Whether the columns follow each other in the file, each with all rows."""

    @property
    def kept(self) -> Storage:
        """Return the storage of the weight in memory."""
        return self.rounded_to or self.storage

    @property
    def file_bytes(self) -> int:
        """Return the bytes of the tensor, or tensors, in the file."""
        if self.split is not None:
            return self.split.file_bytes
        return self.slot.rows * row_bytes(self.storage, self.slot.cols)

    @property
    def row_bytes(self) -> int:
        """Return the bytes of one row in memory."""
        if self.split is not None:
            return _core.split_row_bytes(self.storage, self.slot.cols, self.split.group)
        return row_bytes(self.kept, self.slot.cols)


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a tensor is."""

    descriptor: int
    """The descriptor of the file, open for reading."""
    offset: int
    """Of the first byte, from the start of the file."""
    run_bytes: int = 0
    """The bytes of each run of its rows, if other weights' rows lie in between; 0: contiguous."""
    stride_bytes: int = 0
    """From the start of a run to the start of the next."""


class Source(Protocol):
    """Reads bytes of tensors by position; nothing is mapped, nothing is read twice."""

    def extents(self, tensor: TensorSource) -> tuple[Extent, ...]:
        """Return where its tensors are, for native readers. Valid until `close`.

        For a split matrix, these are the extents of `SplitMatrix.tensors`, in the same order.
        """
        ...

    def read_rows(self, tensor: TensorSource, begin: int, end: int) -> bytes:
        """Read rows [begin, end) of a tensor, exactly as stored; of a split matrix, all bytes.

        Raises:
            CheckpointError: The file has shrunk since it was opened.
        """
        ...

    def close(self) -> None:
        """Close the files. May be called more than once."""
        ...


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file, as declared by its header; checked to lie inside the file."""

    file: File
    name: str
    shape: tuple[int, ...]
    """Rows first, whatever the file's order."""
    kind: str
    """The header's name for the storage type; not necessarily one that can be loaded."""
    offset: int
    """Of the first byte, from the start of the file."""
    size: int
    """The size in bytes."""
    run_bytes: int = 0
    """The bytes of each run of its rows, if other weights' rows lie in between; 0: contiguous."""
    stride_bytes: int = 0
    """From the start of a run to the start of the next."""
    is_transposed: bool = False
    """Whether its bytes are those of the columns, one after the other; `shape` has rows first."""

    def read(self) -> bytes:
        """Read all of it."""
        return self.read_part(0, self.size)

    def read_part(self, begin: int, size: int) -> bytes:
        """Read `size` of its bytes, from byte `begin` on."""
        what, run = f"tensor {quoted(self.name)}", self.run_bytes
        if run == 0 or size == 0:
            return self.file.read(self.offset + begin, size, what)
        if run < _SHORT_RUN:
            return self._read_short_runs(begin, size)
        runs = []
        end = begin + size
        while begin < end:
            count = min(run - begin % run, end - begin)
            offset = self.offset + begin // run * self.stride_bytes + begin % run
            runs.append(self.file.read(offset, count, what))
            begin += count
        return b"".join(runs)

    def _read_short_runs(self, begin: int, size: int) -> bytes:
        """Read what lies between the runs, too: a call for each would take longer."""
        import numpy as np

        first, last = begin // self.run_bytes, (begin + size - 1) // self.run_bytes
        length = (last - first) * self.stride_bytes + self.run_bytes
        offset = self.offset + first * self.stride_bytes
        content = self.file.read(offset, length, f"tensor {quoted(self.name)}")
        runs = np.lib.stride_tricks.as_strided(
            np.frombuffer(content, np.uint8),
            (last - first + 1, self.run_bytes),
            (self.stride_bytes, 1),
        )
        start = begin - first * self.run_bytes
        return runs.tobytes()[start : start + size]


class FileSource:
    """Reads rows of tensors from one or several files; a `Source`."""

    def __init__(
        self, stored: Mapping[str, TensorEntry], entries: Mapping[str, TensorEntry] | None = None
    ) -> None:
        """Take ownership of the files of the tensors `stored`, by name.

        In `entries`, if they differ, fused tensors are replaced by their parts.
        """
        self.stored = stored
        self.entries = stored if entries is None else entries
        self._turned: tuple[str, bytes] = ("", b"")

    def extents(self, tensor: TensorSource) -> tuple[Extent, ...]:
        """Return where its tensors are."""
        names = (tensor.tensor,) if tensor.split is None else tensor.split.tensors
        found = (self.entries[name] for name in names)
        return tuple(
            Extent(entry.file.descriptor, entry.offset, entry.run_bytes, entry.stride_bytes)
            for entry in found
        )

    def read_rows(self, tensor: TensorSource, begin: int, end: int) -> bytes:
        """Read rows [begin, end) of a tensor, exactly as stored; of a split matrix, all bytes."""
        if tensor.split is not None:
            return b"".join(self.entries[name].read() for name in tensor.split.tensors)
        if not 0 <= begin <= end <= tensor.slot.rows:
            raise CheckpointError(
                f"load: rows of tensor {quoted(tensor.tensor)} must lie in "
                f"[0, {tensor.slot.rows}], but are [{begin}, {end}). "
                "This is a bug in sinkstream; please report it."
            )
        entry = self.entries[tensor.tensor]
        row = row_bytes(tensor.storage, tensor.slot.cols)
        if tensor.is_transposed:
            return self._all_rows(tensor.tensor, entry)[begin * row : end * row]
        return entry.read_part(begin * row, (end - begin) * row)

    def _all_rows(self, name: str, entry: TensorEntry) -> bytes:
        """Return all rows of a transposed tensor, and keep them: the next call wants more of them.

        These are of one expert at most.
        """
        import numpy as np

        kept, content = self._turned
        if kept != name:
            rows, cols = entry.shape
            columns = np.frombuffer(entry.read(), f"V{STORAGE_BLOCKS[entry.kind][1]}")
            content = columns.reshape(cols, rows).T.tobytes()
            self._turned = (name, content)
        return content

    def close(self) -> None:
        """Close the files. May be called more than once."""
        for entry in self.stored.values():
            entry.file.close()


@dataclass(frozen=True, slots=True)
class TextFormat:
    """The text side of a checkpoint: tokenizer, chat template, special tokens."""

    tokenizer: Tokenizer | None
    chat_template: str | None
    bos_token_id: int | None = None
    add_bos: bool = False
    """Whether a text prompt starts with the beginning-of-text token."""
    end_token_ids: frozenset[int] = frozenset()
    """All tokens that end a text: every EOS and EOT token."""
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """`bos_token`, `eos_token`, … by the names that chat templates use."""
    vocabulary: Mapping[str, int] = field(default_factory=dict, repr=False)
    """The id of every token, including added ones. Only for building tables during load: a loaded
    model drops it and keeps the tokenizer's own copy."""

    @property
    def bos_ids(self) -> list[int]:
        """Return the ids at the start of every text: the beginning-of-text token, or none."""
        return [self.bos_token_id] if self.add_bos and self.bos_token_id is not None else []


@dataclass(frozen=True, slots=True)
class FolderText:
    """Where a Hugging Face folder describes its text format."""

    folder: Path
    config: Mapping[str, Any] = field(repr=False)
    """The content of config.json."""
    generation: Mapping[str, Any] = field(repr=False)
    """The content of generation_config.json; empty if there is none."""


@dataclass(frozen=True, slots=True)
class GgufText:
    """Where a GGUF file describes its text format."""

    metadata: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class TensorsOnly:
    """An open checkpoint whose text format is not read yet.

    Building the tokenizer is the slow part of opening; weights can be read in the meantime.
    """

    path: str
    spec: DecoderSpec
    tensors: tuple[TensorSource, ...]
    """One for each of `weight_slots(spec)`, in that order; shapes are checked."""
    source: Source
    generation: Mapping[str, Any]
    text: FolderText | GgufText


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened checkpoint: description, text format and tensors, checked but not read."""

    path: str
    spec: DecoderSpec
    text: TextFormat
    tensors: tuple[TensorSource, ...]
    """One for each of `weight_slots(spec)`, in that order; shapes are checked."""
    source: Source
    generation: Mapping[str, Any] = field(default_factory=dict)
    """The checkpoint's sampling defaults: `temperature`, `top_k`, `top_p`, `min_p`, …"""
