"""A checkpoint as the loader sees it, whatever format it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from sinkstream import _core
from sinkstream.checkpoint.spec import DecoderSpec, WeightSlot
from sinkstream.checkpoint.storage import Storage, row_bytes

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class SplitMatrix:
    """A quantized matrix whose codes, scales and zero points are tensors of their own.

    csrc/kernels/pack_split.h has the layouts.
    """

    layout: Literal["awq", "gptq", "rows"]
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
