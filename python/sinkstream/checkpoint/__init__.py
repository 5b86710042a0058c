"""Checkpoints: description, text format and tensors of a GGUF file or a Hugging Face folder."""

from sinkstream.checkpoint.checkpoint import Checkpoint, Source, TensorSource, TextFormat
from sinkstream.checkpoint.storage import STORAGE_BLOCKS, Storage, row_bytes

__all__ = [
    "STORAGE_BLOCKS",
    "Checkpoint",
    "Source",
    "Storage",
    "TensorSource",
    "TextFormat",
    "row_bytes",
]
