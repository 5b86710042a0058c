"""Tensors in their files, and the `Source` that reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sinkstream.checkpoint.bounded_file import File
from sinkstream.checkpoint.checkpoint import Extent, TensorSource
from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.storage import row_bytes
from sinkstream.errors import CheckpointError


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
    """In bytes."""

    def read(self) -> bytes:
        """Read all of it."""
        return self.file.read(self.offset, self.size, f"tensor {quoted(self.name)}")


class FileSource:
    """Reads rows of tensors from one or several files; a `Source`."""

    def __init__(self, entries: Mapping[str, TensorEntry]) -> None:
        """Take ownership of the files of `entries`, which are keyed by tensor name."""
        self.entries = entries

    def extents(self, tensor: TensorSource) -> tuple[Extent, ...]:
        """Return where its tensors are."""
        names = (tensor.tensor,) if tensor.split is None else tensor.split.tensors
        found = (self.entries[name] for name in names)
        return tuple(Extent(entry.file.descriptor, entry.offset) for entry in found)

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
        what = f"tensor {quoted(tensor.tensor)}"
        return entry.file.read(entry.offset + begin * row, (end - begin) * row, what)

    def close(self) -> None:
        """Close the files. May be called more than once."""
        for entry in self.entries.values():
            entry.file.close()
