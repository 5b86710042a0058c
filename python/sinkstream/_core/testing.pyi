"""Single steps, for tests."""

from collections.abc import Sequence

from sinkstream._core import ModelBuilder

def process_logits(
    logits: Sequence[float],
    *,
    counts: Sequence[tuple[int, int]] = ...,
    bias: Sequence[tuple[int, float]] = ...,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    temperature: float = 1.0,
    table: str = "",
) -> list[float]:
    """Apply bias, penalties and temperature to one row of logits, as a stream does."""

def kept_tokens(
    logits: Sequence[float],
    *,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    table: str = "",
) -> list[int]:
    """List the ids that are left after top-k, then top-p, then min-p."""

def unpack_rows(storage: str, content: bytes, cols: int, table: str = "") -> bytes:
    """Pack rows of a file into panels, and return their numbers as float32, [rows, cols]."""

def matrix_numbers(builder: ModelBuilder, weight: str, table: str = "") -> bytes:
    """Return a matrix that was read, as float32, [rows, cols] of the file."""
