"""Whether an output head is the embedding: the tensors decide, whatever config.json says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from sinkstream.checkpoint.families.weight_names import WeightNames
from sinkstream.checkpoint.match_tensors import UNQUANTIZED
from sinkstream.checkpoint.spec import DecoderSpec
from sinkstream.checkpoint.storage import STORAGE_BLOCKS, as_float32
from sinkstream.checkpoint.tensors import TensorEntry
from sinkstream.errors import warn_caller

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_PIECE = 1 << 20  # numbers compared at a time


def resolve_tie(
    spec: DecoderSpec,
    names: WeightNames,
    entries: Mapping[str, TensorEntry],
    where: str,
    *,
    is_stated: bool = True,
    compares: bool = True,
) -> tuple[DecoderSpec, Mapping[str, TensorEntry]]:
    """Return the description and tensors of the model that transformers would compute.

    A head that differs from the embedding is used even if `tie_word_embeddings` is true: merging
    adapters creates such a head and leaves the flag unchanged. In a tied pair, either tensor may be
    absent.

    Args:
        spec: The decoder that config.json describes.
        names: The format's tensor names.
        entries: The tensors in the files, by name.
        where: The folder, for the warning.
        is_stated: Whether config.json states it, so that a head that differs is worth a warning.
        compares: Whether to read both tensors. Otherwise they count as equal if that is stated.
    """
    embedding, head = (names.tensor(slot) for slot in ("embedding", "output"))
    if not spec.tie_embeddings or head not in entries:
        return spec, entries
    if embedding not in entries:
        return spec, {**entries, embedding: entries[head]}
    if is_stated if not compares else _are_equal(entries[embedding], entries[head]):
        return spec, entries
    if is_stated:
        warn_caller(
            f"load: {where}: `tie_word_embeddings` should be false if tensor {head} exists and "
            f"differs from {embedding}, but is true. The model uses {head}."
        )
    return replace(spec, tie_embeddings=False), entries


def _are_equal(one: TensorEntry, other: TensorEntry) -> bool:
    """Compare two tensors, number by number, up to the first difference."""
    import numpy as np

    if one.shape != other.shape or not {one.kind, other.kind} <= set(UNQUANTIZED):
        return False
    count = int(np.prod(one.shape, dtype=np.int64))
    return all(
        np.array_equal(_numbers(one, begin, count), _numbers(other, begin, count))
        for begin in range(0, count, _PIECE)
    )


def _numbers(entry: TensorEntry, begin: int, count: int) -> npt.NDArray[np.float32]:
    """Read the next numbers of a tensor with `count` numbers."""
    size = STORAGE_BLOCKS[entry.kind][1]
    length = min(_PIECE, count - begin) * size
    content = entry.file.read(entry.offset + begin * size, length, f'tensor "{entry.name}"')
    return as_float32(content, entry.kind)
