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
from sinkstream.checkpoint.open import open_checkpoint

__all__ = [
    "BLOCK",
    "Checkpoint",
    "Source",
    "Storage",
    "TensorSource",
    "TextFormat",
    "open_checkpoint",
    "row_bytes",
]
