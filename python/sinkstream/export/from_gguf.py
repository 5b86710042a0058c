"""A 16-bit or 32-bit GGUF file as a `GgufModel`: its tensors and metadata as they are."""

from __future__ import annotations

from pathlib import Path

from sinkstream.checkpoint.bounded_file import File
from sinkstream.checkpoint.checkpoint import (
    FileSource,
    GgufText,
    TensorEntry,
    TensorsOnly,
    row_bytes,
)
from sinkstream.checkpoint.formats.gguf_header import raw_metadata
from sinkstream.checkpoint.match_tensors import UNQUANTIZED
from sinkstream.export.gguf_model import GgufModel, GgufTensor, quantized_already


def model_from_gguf(opened: TensorsOnly) -> GgufModel:
    """Return what to write for an open GGUF file, or for one in parts.

    Raises:
        CheckpointError: A matrix is already quantized.
    """
    assert isinstance(opened.text, GgufText)
    assert isinstance(opened.source, FileSource)
    path = Path(opened.path)
    return GgufModel(
        name=path.name,
        metadata=_stored_metadata(path),
        tensors=tuple(map(_tensor, opened.source.stored.values())),
        alignment=opened.text.metadata.get("general.alignment", 32),
    )


def _tensor(entry: TensorEntry) -> GgufTensor:
    is_matrix = len(entry.shape) > 1
    if is_matrix and entry.kind not in UNQUANTIZED:
        raise quantized_already(entry.file.name, "file", entry.name, entry.kind)
    row = row_bytes(entry.kind, entry.shape[-1] if is_matrix else 1)

    def read(begin: int, end: int) -> bytes:
        length = (end - begin) * row
        return entry.file.read(entry.offset + begin * row, length, f'tensor "{entry.name}"')

    return GgufTensor(entry.name, entry.shape, entry.kind, read)


def _stored_metadata(path: Path) -> dict[str, bytes]:
    """Return the metadata of a file, or of its first part, which may have no tensors.

    Keys that say that the file is part of a set are left out.
    """
    file = File(path)
    try:
        found = raw_metadata(file)
    finally:
        file.close()
    return {key: value for key, value in found.items() if not key.startswith("split.")}
