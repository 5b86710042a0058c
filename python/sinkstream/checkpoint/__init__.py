"""Checkpoints: description, text format and tensors of a GGUF file or a Hugging Face folder."""

from sinkstream.checkpoint.checkpoint import (
    STORAGE_BLOCKS,
    Checkpoint,
    Source,
    Storage,
    TensorSource,
    TextFormat,
    row_bytes,
)

__all__ = [
    "STORAGE_BLOCKS",
    "Checkpoint",
    "Source",
    "Storage",
    "TensorSource",
    "TextFormat",
    "row_bytes",
]
