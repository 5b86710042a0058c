"""Tensors that hold the rows of several weights: each weight is some of their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sinkstream.checkpoint.families.weight_names import WeightNames
from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.spec import DecoderSpec, WeightSlot, weight_slots
from sinkstream.checkpoint.storage import STORAGE_BLOCKS, row_bytes
from sinkstream.checkpoint.tensors import TensorEntry
from sinkstream.errors import CheckpointError


def split_fused(
    spec: DecoderSpec, names: WeightNames, entries: Mapping[str, TensorEntry], where: str
) -> Mapping[str, TensorEntry]:
    """Replace each fused tensor with entries for its parts.

    A tensor whose parts the decoder lacks stays as it is.

    Args:
        spec: The decoder that the checkpoint describes.
        names: The format's names.
        entries: The tensors in its files, by name.
        where: The file or folder, for errors.

    Raises:
        CheckpointError: A fused tensor does not have the rows and columns of its parts.
    """
    if not names.fused:
        return entries
    found = dict(entries)
    slots = {slot.name: slot for slot in weight_slots(spec)}
    for layer in range(spec.layers):
        for name, fused in names.fused.items():
            tensor = names.layer_prefix.format(layer) + name
            needed = [f"layers.{layer}.{part}" for part in fused.parts]
            held = [slots[slot] for slot in needed if slot in slots]
            if tensor in entries and held:
                parts = _parts(found.pop(tensor), held, fused.groups(spec), where)
                names_of_parts = (names.tensor(slot.name) for slot in held)
                found.update(zip(names_of_parts, parts, strict=True))
    return found


def _parts(
    entry: TensorEntry, slots: Sequence[WeightSlot], groups: int, where: str
) -> Iterator[TensorEntry]:
    """Yield each part's entry. The tensor consists of `groups` equal groups with all parts."""
    cols = slots[0].cols
    shape = _shape(sum(slot.rows for slot in slots), cols)
    if entry.shape != shape:
        raise CheckpointError(
            f"load: {where}: tensor {quoted(entry.name)} must have shape {list(shape)}, but has "
            f"{list(entry.shape)}."
        )
    # Of a storage type that cannot be loaded no row is read: matching refuses it.
    of_row = row_bytes(entry.kind, cols) if entry.kind in STORAGE_BLOCKS else 0
    stride, offset = shape[0] // groups * of_row, entry.offset
    for slot in slots:
        if slot.rows % groups:
            raise CheckpointError(
                f"load: {where}: tensor {quoted(entry.name)} must hold the rows of {slot.name} "
                f"in {groups} equal parts, but {slot.rows} is not a multiple of {groups}."
            )
        run = slot.rows // groups * of_row
        yield replace(
            entry,
            shape=_shape(slot.rows, cols),
            offset=offset,
            size=slot.rows * of_row,
            run_bytes=0 if groups == 1 else run,
            stride_bytes=0 if groups == 1 else stride,
        )
        offset += run


def _shape(rows: int, cols: int) -> tuple[int, ...]:
    return (rows,) if cols == 1 else (rows, cols)
