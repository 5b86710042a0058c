"""Checkpoints: a description, a text format, and tensors, from GGUF or a Hugging Face folder."""

from sinkstream.checkpoint.checkpoint import (
    BLOCK,
    Checkpoint,
    Source,
    Storage,
    TensorSource,
    TextFormat,
    row_bytes,
)

__all__ = [
    "BLOCK",
    "Checkpoint",
    "Source",
    "Storage",
    "TensorSource",
    "TextFormat",
    "row_bytes",
]
