"""What every checkpoint looks like to the loader, whatever file it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from sinkstream.checkpoint.spec import DecoderSpec, WeightSlot

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Storage = Literal["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"]
"""How numbers lie in the file. The quantised ones are GGUF's blocks of 32 along a row."""

STORAGE_BLOCKS = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q8_0": (32, 34),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
}
"""For each storage: numbers in a block, and bytes of a block."""


def row_bytes(storage: Storage, cols: int) -> int:
    """Return the bytes of one row of `cols` numbers (a multiple of the storage's block)."""
    numbers, size = STORAGE_BLOCKS[storage]
    return cols // numbers * size


@dataclass(frozen=True, slots=True)
class TensorSource:
    """Where one slot's numbers come from."""

    slot: WeightSlot
    tensor: str
    """The tensor's name in the checkpoint, as errors should show it."""
    storage: Storage


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a tensor's rows lie, one after the other."""

    descriptor: int
    """Of the file, which is open for reading."""
    offset: int
    """Of the first row, from the start of the file."""


class Source(Protocol):
    """Gives bytes of tensors by positioned reads; nothing is mapped, nothing is read twice."""

    def extent(self, tensor: TensorSource) -> Extent:
        """Say where a tensor lies, for readers without Python. It holds until `close`."""
        ...

    def read_rows(self, tensor: TensorSource, begin: int, end: int) -> bytes:
        """Read rows [begin, end) of a tensor, as they lie in the file.

        Raises:
            CheckpointError: The file has become shorter than it was when it was opened.
        """
        ...

    def close(self) -> None:
        """Close the files. May be called more than once."""
        ...


@dataclass(frozen=True, slots=True)
class TextFormat:
    """Everything of a checkpoint that concerns text and not numbers."""

    tokenizer: Tokenizer | None
    chat_template: str | None
    bos_token_id: int | None = None
    add_bos: bool = False
    """Whether a text prompt starts with the beginning-of-text token."""
    end_token_ids: frozenset[int] = frozenset()
    """All tokens that end a text: eos, eot, and the lists of both."""
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """`bos_token`, `eos_token`, … as chat templates want to see them."""
    vocabulary: Mapping[str, int] = field(default_factory=dict, repr=False)
    """The id of every token, added ones too. For tables that are made while a model is loaded,
    which keeps no vocabulary but the tokenizer's own."""

    @property
    def bos_ids(self) -> list[int]:
        """Return what every text begins with: the beginning-of-text token, or nothing."""
        return [self.bos_token_id] if self.add_bos and self.bos_token_id is not None else []


@dataclass(frozen=True, slots=True)
class FolderText:
    """Where the text format of a Hugging Face folder is described."""

    folder: Path
    config: Mapping[str, Any] = field(repr=False)
    """What config.json holds."""


@dataclass(frozen=True, slots=True)
class GgufText:
    """Where the text format of a GGUF file is described."""

    metadata: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class TensorsOnly:
    """An open checkpoint, but for its text.

    Building a tokenizer is the slow part of opening, and weights can be read meanwhile.
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
    """Sampling defaults of the checkpoint: `temperature`, `top_k`, `top_p`, `min_p`, …"""
