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
    """The size in bytes."""
    run_bytes: int = 0
    """The bytes of each run of its rows, if other weights' rows lie in between; 0: contiguous."""
    stride_bytes: int = 0
    """From the start of a run to the start of the next."""

    def read(self) -> bytes:
        """Read all of it."""
        return self.read_part(0, self.size)

    def read_part(self, begin: int, size: int) -> bytes:
        """Read `size` of its bytes, from byte `begin` on."""
        what, run = f"tensor {quoted(self.name)}", self.run_bytes
        if run == 0:
            return self.file.read(self.offset + begin, size, what)
        runs = []
        end = begin + size
        while begin < end:
            count = min(run - begin % run, end - begin)
            offset = self.offset + begin // run * self.stride_bytes + begin % run
            runs.append(self.file.read(offset, count, what))
            begin += count
        return b"".join(runs)


class FileSource:
    """Reads rows of tensors from one or several files; a `Source`."""

    def __init__(
        self, stored: Mapping[str, TensorEntry], entries: Mapping[str, TensorEntry] | None = None
    ) -> None:
        """Take ownership of the files.

        Args:
            stored: The tensors in them, by name.
            entries: The same, but with fused tensors replaced by their parts, if there are any.
        """
        self.stored = stored
        self.entries = stored if entries is None else entries

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
        return entry.read_part(begin * row, (end - begin) * row)

    def close(self) -> None:
        """Close the files. May be called more than once."""
        for entry in self.stored.values():
            entry.file.close()
