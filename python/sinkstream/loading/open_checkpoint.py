"""Opens a complete checkpoint, and checks that its tokenizer fits its model.

Also decides which matrices `load(quantize=…)` quantizes, and to which block formats.

It is above both folders: `text/` imports `checkpoint/`, never the reverse.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

from sinkstream import _core
from sinkstream.checkpoint.checkpoint import (
    Checkpoint,
    FolderText,
    GgufText,
    Storage,
    TensorsOnly,
    TensorSource,
    TextFormat,
    block_type,
)
from sinkstream.checkpoint.match_tensors import UNQUANTIZED
from sinkstream.checkpoint.open_tensors import open_tensors
from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.spec import WeightSlot
from sinkstream.errors import CheckpointError, warn_caller
from sinkstream.request.checks import as_choice
from sinkstream.text.tokenizers import from_folder, from_gguf

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
_EXACT = ("router", "shared_gate")
"""The last part of the names of matrices that keep their type: they are small, and decide."""


def open_checkpoint(
    path: str | os.PathLike[str] | None = None,
    *,
    revision: str | None = None,
    download: bool = False,
) -> Checkpoint:
    """Open a checkpoint: read and check its description, and leave its tensors in their files.

    Args:
        path: A `.gguf` file, a Hugging Face folder, or a name, as for `locate_model`. If None,
            `$SINKSTREAM_MODEL`, or else "smollm2".
        revision: Branch, tag or commit of a hub repository.
        download: Whether to fetch a hub repository.

    Returns:
        The checkpoint. Its `source` keeps the files open until `source.close()`.

    Raises:
        CheckpointError: The checkpoint is missing, damaged, unsupported, or inconsistent with its
            own description.

    Example:
        >>> checkpoint = open_checkpoint("smollm2")
        >>> checkpoint.spec.layers
        30
        >>> checkpoint.source.close()
    """
    opened = open_tensors(path, revision=revision, download=download)
    try:
        return with_text(opened)
    except BaseException:
        opened.source.close()
        raise


def with_text(opened: TensorsOnly) -> Checkpoint:
    """Complete an open checkpoint with its text format. Closes nothing, even on an error.

    Raises:
        CheckpointError: The text format is damaged, unsupported, or does not fit the model.
    """
    text = _without_useless_ids(_read_text(opened.text), opened.spec.vocab_size)
    _check_vocabulary(text, opened.spec.vocab_size)
    return Checkpoint(
        path=opened.path,
        spec=opened.spec,
        text=text,
        tensors=opened.tensors,
        source=opened.source,
        generation=opened.generation,
    )


def _read_text(described: FolderText | GgufText) -> TextFormat:
    if isinstance(described, FolderText):
        return from_folder.text_format_from_folder(
            described.folder, described.config, described.generation
        )
    return from_gguf.text_format_from_gguf(described.metadata)


def _without_useless_ids(text: TextFormat, rows: int) -> TextFormat:
    """Leave out end and start tokens that the model lacks: they occur in no text."""
    ends = {token_id for token_id in text.end_token_ids if token_id < rows}
    bos = text.bos_token_id
    if bos is not None and bos >= rows and not text.add_bos:
        bos = None
    for name, token_id in [
        ("end_token_ids", max(text.end_token_ids - ends, default=None)),
        ("bos_token_id", text.bos_token_id if bos is None else None),
    ]:
        if token_id is not None:
            warn_caller(
                f"load: {name} should be in [0, {rows}), the model's vocabulary, but {token_id} "
                "is not. It is ignored."
            )
    return replace(text, end_token_ids=frozenset(ends), bos_token_id=bos)


def _check_vocabulary(text: TextFormat, rows: int) -> None:
    """Check that the model has an embedding row for every id of its tokenizer.

    Padding tokens that were added without a row are common, and occur in no text. An ordinary token
    without a row is refused: the tokenizer belongs to a different model.
    """
    if text.bos_token_id is not None and text.bos_token_id >= rows:
        raise CheckpointError(
            f"load: bos_token_id must be in [0, {rows}), the model's vocabulary, but "
            f"{text.bos_token_id} is not."
        )
    excess = {token_id: token for token, token_id in text.vocabulary.items() if token_id >= rows}
    if text.tokenizer is None or not excess:
        return
    last = max(excess)
    if excess.keys() <= text.tokenizer.get_added_tokens_decoder().keys():
        more = f" and {len(excess) - 1} more are" if len(excess) > 1 else " is"
        warn_caller(
            f"load: the ids of added tokens should be in [0, {rows}), the model's vocabulary, but "
            f"{last} ({quoted(excess[last])}){more} not. A prompt with such a token is refused."
        )
        return
    raise CheckpointError(
        f"load: the tokenizer's ids must be in [0, {rows}), the model's vocabulary, but {last} is "
        f"not. The model has a vocabulary of {rows} tokens, the tokenizer one of "
        f"{len(set(text.vocabulary.values()))}."
    )


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
    Routers always keep their type.
    """
    if storage is None:
        return opened
    tensors = tuple(_rounded(tensor, storage) for tensor in opened.tensors)
    _warn_of(tensor for tensor in tensors if _is_rounded(tensor.slot))
    return replace(opened, tensors=tensors)


def _rounded(tensor: TensorSource, storage: Storage) -> TensorSource:
    slot = tensor.slot
    if not _is_rounded(slot) or tensor.storage not in UNQUANTIZED:
        return tensor
    wanted = _FINE if slot.name in _FINE_SLOTS else storage
    return replace(tensor, rounded_to=block_type(wanted, slot.cols))


def _is_rounded(slot: WeightSlot) -> bool:
    return slot.cols > 1 and slot.name.rpartition(".")[2] not in _EXACT


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
