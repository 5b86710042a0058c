"""Fused tensors, which hold the rows of several weights: each weight is some of the rows.

Those of all experts of a layer may hold each expert transposed: some of each column's numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sinkstream.checkpoint.checkpoint import TensorEntry
from sinkstream.checkpoint.families.weight_names import (
    SCALES_OF_BLOCKS,
    Fused,
    WeightNames,
)
from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.spec import DecoderSpec, Experts, WeightSlot, weight_slots
from sinkstream.errors import CheckpointError


def split_fused(
    spec: DecoderSpec,
    names: WeightNames,
    entries: Mapping[str, TensorEntry],
    where: str,
    block: tuple[int, int] | None = None,
) -> Mapping[str, TensorEntry]:
    """Replace each fused tensor with entries for its parts.

    A tensor whose parts the decoder lacks stays as it is. `block`: rows and columns that share a
    scale of FP8.

    Raises:
        CheckpointError: A fused tensor does not have the rows and columns of its parts, or is
            missing in one layer.
    """
    if not names.fused:
        return entries
    found = dict(entries)
    for tensors in _by_layer(spec, names, entries, where, block):
        transposed = [tensor for tensor in tensors if tensor.may_be_transposed]
        if all(tensor.is_square for tensor in transposed):
            transposed = []
        modules = {tensor.module for tensor in transposed}  # their scales are transposed, too
        for tensor in tensors:
            found.pop(tensor.entry.name)
            is_transposed = len(tensor.shapes) > 1 and tensor.module in modules
            stacked = _stacked(tensor, where, is_transposed=is_transposed)
            for entry, parts in zip(stacked, tensor.held, strict=True):
                groups = tensor.fused.groups(spec, parts[0].rows)
                of_parts = (part_name(names.tensor(slot.name), tensor.end) for slot in parts)
                found.update(zip(of_parts, _parts_of(entry, parts, groups, where), strict=True))
    return found


def part_name(tensor: str, end: str) -> str:
    """Return a name such as "gate_up_proj[experts.0.up]" with an end for the tensor itself."""
    stored, bracket, part = tensor.partition("[")
    return stored + end + bracket + part


@dataclass(frozen=True, slots=True)
class _FusedTensor:
    """A fused tensor of a layer, as a checkpoint has it."""

    entry: TensorEntry
    end: str
    """What is added to its name: `Fused.tensors`."""
    fused: Fused
    held: Sequence[Sequence[WeightSlot]]
    """The slots of each expert's parts; of another tensor, its own."""
    shapes: Sequence[tuple[int, ...]]
    """Those that it may have: with rows first, and transposed."""

    @property
    def module(self) -> str:
        return self.entry.name.removesuffix(self.end)

    @property
    def may_be_transposed(self) -> bool:
        return not self.end and self.entry.shape in self.shapes[1:]

    @property
    def is_square(self) -> bool:
        return self.shapes[0] in self.shapes[1:]


def _by_layer(
    spec: DecoderSpec,
    names: WeightNames,
    entries: Mapping[str, TensorEntry],
    where: str,
    block: tuple[int, int] | None,
) -> Iterator[list[_FusedTensor]]:
    """Yield the fused tensors of each layer whose parts the decoder has."""
    slots = {slot.name: slot for slot in weight_slots(spec)}
    prefixes = [names.layer_prefix.format(layer) for layer in range(spec.layers)]
    for layer, prefix in enumerate(prefixes):
        found = []
        for name, fused in names.fused.items():
            held = [
                [slots[slot] for slot in needed if slot in slots]
                for needed in _slots_of(spec, layer, fused)
            ]
            for end in fused.tensors if held and all(held) else ():
                tensor, parts = prefix + name + end, held
                entry, part = entries.get(tensor), names.tensor(held[0][0].name)
                if end == SCALES_OF_BLOCKS:
                    codes = entries.get(prefix + name)
                    if block is None or codes is None or codes.kind != "F8_E4M3":
                        continue
                    parts = _blocks(held, block, tensor, where)
                    shapes = _shapes(fused, parts, (parts[0][0].cols,), may_turn=True)
                    is_missing = entry is None and part + end not in entries
                else:
                    shapes = _shapes(fused, held, entry.shape[2:] if entry and end else None)
                    # Parts that are named after it are reported as they are.
                    is_missing = not (end or entry or part.endswith("]") or part in entries)
                    is_missing &= any(other + name in entries for other in prefixes)
                if is_missing:
                    raise CheckpointError(
                        f"load: {where}: tensor {quoted(tensor)} of shape {_listed(shapes)} is "
                        "missing."
                    )
                if entry is not None:
                    found.append(_FusedTensor(entry, end, fused, parts, shapes))
        yield found


def _blocks(
    held: Sequence[Sequence[WeightSlot]], block: tuple[int, int], tensor: str, where: str
) -> list[list[WeightSlot]]:
    """Return the slots as if each block of them were a number."""
    rows, cols = block
    for slot in held[0][:-1]:
        if slot.rows % rows:
            raise CheckpointError(
                f"load: {where}: tensor {quoted(tensor)} must hold scales for blocks that do "
                f"not reach across parts, but {slot.name} has {slot.rows} rows, in blocks of "
                f"{rows}."
            )
    return [
        [replace(slot, rows=-(-slot.rows // rows), cols=-(-slot.cols // cols)) for slot in slots]
        for slots in held
    ]


def _shapes(
    fused: Fused,
    held: Sequence[Sequence[WeightSlot]],
    of_row: tuple[int, ...] | None = None,
    *,
    may_turn: bool = False,
) -> list[tuple[int, ...]]:
    """Return the shapes that a fused tensor may have.

    `of_row`: the other dimensions of codes or scales; `may_turn`: whether these are transposed with
    the codes.
    """
    slots = held[0]
    cols = ((slots[0].cols,) if slots[0].cols > 1 else ()) if of_row is None else of_row
    experts = (len(held),) if fused.is_of_experts else ()
    rows = (sum(slot.rows for slot in slots),)
    may_turn |= fused.may_be_transposed and of_row is None and bool(cols)
    return [(*experts, *rows, *cols), *([(*experts, *cols, *rows)] if may_turn else [])]


def _listed(shapes: Sequence[tuple[int, ...]]) -> str:
    return " or ".join(dict.fromkeys(str(list(shape)) for shape in shapes))


def _slots_of(spec: DecoderSpec, layer: int, fused: Fused) -> list[list[str]]:
    """Return the slots of a fused tensor; those of each expert by themselves."""
    slots = [f"layers.{layer}.{part}" for part in fused.parts]
    if not fused.is_of_experts:
        return [slots]
    block = spec.blocks[spec.block_of_layer[layer]]
    count = block.feed_forward.experts if isinstance(block.feed_forward, Experts) else 0
    return [[slot.replace("*", str(expert)) for slot in slots] for expert in range(count)]


def _stacked(tensor: _FusedTensor, where: str, *, is_transposed: bool) -> Iterator[TensorEntry]:
    """Yield the entry of each expert in a tensor of all experts; of another tensor, itself."""
    entry, shape = tensor.entry, tensor.shapes[0]
    if entry.shape != tensor.shapes[is_transposed]:
        allowed = [tensor.shapes[is_transposed]] if tensor.end else tensor.shapes
        raise CheckpointError(
            f"load: {where}: tensor {quoted(entry.name)} must have shape {_listed(allowed)}, but "
            f"has {list(entry.shape)}."
        )
    count = len(tensor.held)
    size = entry.size // count
    for i in range(count):
        yield replace(
            entry,
            shape=shape[1:] if tensor.fused.is_of_experts else shape,  # rows first
            offset=entry.offset + i * size,
            size=size,
            is_transposed=is_transposed,
        )


def _parts_of(
    entry: TensorEntry, slots: Sequence[WeightSlot], groups: int, where: str
) -> Iterator[TensorEntry]:
    """Yield each part's entry. The tensor consists of `groups` equal groups with all parts.

    Of a transposed one, each column does.
    """
    shape, columns = entry.shape, entry.shape[1] if entry.is_transposed else 1
    # Of a storage type that cannot be loaded no row is read: matching refuses it.
    of_row = entry.size // (shape[0] * columns)
    stride, offset = shape[0] // groups * of_row, entry.offset
    is_whole = groups == 1 and (columns == 1 or len(slots) == 1)
    for slot in slots:
        if slot.rows % groups:
            raise CheckpointError(
                f"load: {where}: tensor {quoted(entry.name)} must hold the rows of {slot.name} "
                f"in {groups} equal parts, but {slot.rows} is not a multiple of {groups}."
            )
        run = slot.rows // groups * of_row
        yield replace(
            entry,
            shape=(slot.rows, *shape[1:]),
            offset=offset,
            size=slot.rows * of_row * columns,
            run_bytes=0 if is_whole else run,
            stride_bytes=0 if is_whole else stride,
        )
        offset += run
