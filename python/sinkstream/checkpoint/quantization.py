"""Which matrices `load(quantize=…)` quantizes, and to which block formats."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

from sinkstream import _core
from sinkstream.checkpoint.checkpoint import TensorsOnly, TensorSource
from sinkstream.checkpoint.match_tensors import UNQUANTIZED
from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.storage import Storage, block_type
from sinkstream.errors import warn_caller
from sinkstream.request.checks import as_choice

Quantize = Literal[
    "int8", "int4", "q8_0", "q6_k", "q5_k", "q5_1", "q5_0", "q4_k", "q4_1", "q4_0", "iq4_nl",
    "iq4_xs", "mxfp4", "q3_k", "q2_k",
]  # fmt: skip

_TYPES: dict[str, Storage] = {
    "int8": "Q8_0",
    "int4": "Q4_0",
    **{storage.lower(): storage for storage in _core.quantizable()},
}
_FINE: Storage = "Q8_0"
_FINE_SLOTS = ("embedding", "output")
"""Weights whose rounding is seen most, and that are read by rows or once per token: always in
8 bits, as every quantizer gives them more bits than the rest."""


def as_quantization(value: Any) -> Storage | None:
    """Return the block format that `quantize` names, None if it is None.

    Raises:
        TypeError: It is not a string.
        InvalidArgument: There is no such name.
    """
    if value is None:
        return None
    name = value.lower() if isinstance(value, str) else value
    return _TYPES[as_choice("load", "quantize", name, list(_TYPES))]


def rounded(opened: TensorsOnly, storage: Storage | None) -> TensorsOnly:
    """Return a checkpoint whose 16-bit and 32-bit matrices are quantized as they are read.

    Matrices whose rows are not whole blocks get the type that `block_type` names. Matrices that are
    already quantized stay as they are, and so do matrices that no type fits; a warning says so.
    """
    if storage is None:
        return opened
    tensors = tuple(_rounded(tensor, storage) for tensor in opened.tensors)
    matrices = [tensor for tensor in tensors if tensor.slot.cols > 1]
    _warn_of(matrices)
    return replace(opened, tensors=tensors)


def _rounded(tensor: TensorSource, storage: Storage) -> TensorSource:
    slot = tensor.slot
    if slot.cols == 1 or tensor.storage not in UNQUANTIZED:
        return tensor
    wanted = _FINE if slot.name in _FINE_SLOTS else storage
    return replace(tensor, rounded_to=block_type(wanted, slot.cols))


def _warn_of(matrices: Iterable[TensorSource]) -> None:
    """Warn once of the matrices that are not rounded."""
    left = [matrix for matrix in matrices if matrix.rounded_to is None]
    quantized = [matrix for matrix in left if matrix.storage not in UNQUANTIZED]
    if quantized:
        which = _and_more(quantized, quantized[0].storage, "is", "are")
        warn_caller(
            f"load: `quantize` applies to 16-bit and 32-bit matrices, but {which} already "
            "quantized in the file and will not be quantized again."
        )
    elif left:
        which = _and_more(left, f"{left[0].slot.cols} columns", "does", "do")
        keeps = "keeps its type" if len(left) == 1 else "keep their types"
        warn_caller(
            f"load: a matrix must have a multiple of 32 columns to be quantized, but {which} not, "
            f"and {keeps}."
        )


def _and_more(matrices: list[TensorSource], fact: str, one: str, several: str) -> str:
    """Return the first matrix, a fact about it, how many more there are, and a verb that agrees."""
    first, more = f"{quoted(matrices[0].tensor)} ({fact})", len(matrices) - 1
    return f"{first} and {more} more {several}" if more else f"{first} {one}"
