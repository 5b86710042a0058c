"""Tensors that hold the rows of several weights: each weight is a range of their rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sinkstream.checkpoint.families.family import WeightNames
from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.spec import DecoderSpec, WeightSlot, weight_slots
from sinkstream.checkpoint.storage import STORAGE_BLOCKS, row_bytes
from sinkstream.checkpoint.tensors import TensorEntry
from sinkstream.errors import CheckpointError


def split_fused(
    spec: DecoderSpec, names: WeightNames, entries: Mapping[str, TensorEntry], where: str
) -> Mapping[str, TensorEntry]:
    """Replace each fused tensor by entries for its parts, which lie one after another.

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
        for name, parts in names.fused.items():
            entry = found.pop(names.layer_prefix.format(layer) + name, None)
            if entry is not None:
                needed = [slots[f"layers.{layer}.{part}"] for part in parts]
                for slot, part in zip(needed, _parts(entry, needed, where), strict=True):
                    found[names.tensor(slot.name)] = part
    return found


def _parts(entry: TensorEntry, slots: list[WeightSlot], where: str) -> list[TensorEntry]:
    cols = slots[0].cols
    shape = (sum(slot.rows for slot in slots), cols)
    if entry.shape != shape:
        raise CheckpointError(
            f"load: {where}: tensor {quoted(entry.name)} must have shape {list(shape)}, but has "
            f"{list(entry.shape)}."
        )
    # Of a storage type that cannot be loaded no row is read: matching refuses it.
    of_row = row_bytes(entry.kind, cols) if entry.kind in STORAGE_BLOCKS else 0
    parts, offset = [], entry.offset
    for slot in slots:
        size = slot.rows * of_row
        parts.append(replace(entry, shape=(slot.rows, cols), offset=offset, size=size))
        offset += size
    return parts
