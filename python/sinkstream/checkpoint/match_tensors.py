"""Matches the weights that a decoder needs with the tensors that a checkpoint has.

A fused tensor holds the rows of several weights: each of them is some of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sinkstream.checkpoint.checkpoint import (
    STORAGE_BLOCKS,
    Storage,
    TensorEntry,
    TensorSource,
    row_bytes,
)
from sinkstream.checkpoint.families.weight_names import WeightNames
from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.spec import DecoderSpec, WeightSlot, weight_slots
from sinkstream.errors import CheckpointError, warn_caller

_MAX_LISTED = 20


@dataclass(frozen=True, slots=True)
class SplitFound:
    """The tensors of a split matrix, or what is wrong with them."""

    names: tuple[str, ...]
    source: TensorSource | None
    problems: tuple[str, ...] = ()


UNQUANTIZED: tuple[Storage, ...] = ("BF16", "F16", "F32")
"""Storage types of vectors (only rows of matrices have blocks), and of weights that are a single
safetensors tensor."""


def match_tensors(
    spec: DecoderSpec,
    names: WeightNames,
    entries: Mapping[str, TensorEntry],
    storages: Collection[str],
    unused: Collection[str],
    where: str,
    is_refused: Callable[[str], bool] = lambda name: False,
    find_split: Callable[[str, WeightSlot], SplitFound | None] = lambda tensor, slot: None,
) -> tuple[TensorSource, ...]:
    """Find the tensor for every weight slot. Warn of tensors that fill none.

    Matrices may have the types in `storages`. Tensors in `unused` may be present and are ignored,
    next to the patterns of `names`; `is_refused` says which others are an error, by their names.
    `find_split` returns the tensors of a slot's split matrix, or None if it is a single tensor; it
    gets the name that the single tensor would have.

    Returns:
        One source for each of `weight_slots(spec)`, in that order.

    Raises:
        CheckpointError: Tensors are missing, unexpected, or have the wrong shape or storage type.
            The message lists them, up to 20.
    """
    if not entries:
        raise CheckpointError(
            f"load: {where} must hold the model's weights, but has no tensors. Files with only a "
            "tokenizer are like that."
        )
    needed: set[str] = set()
    sources: list[TensorSource] = []
    problems: list[str] = []
    for slot in weight_slots(spec):
        tensor = names.tensor(slot.name)
        found = find_split(tensor, slot)
        if found is not None:
            needed.update(found.names)
            problems += found.problems
            sources += [found.source] if found.source is not None else []
            continue
        needed.add(tensor)
        problem = _problem(tensor, slot, entries.get(tensor), storages)
        if problem is not None:
            problems.append(problem)
        else:
            added = names.added_to(slot.name)
            sources.append(TensorSource(slot, tensor, entries[tensor].kind, added=added))
    surplus: dict[str, str] = {}
    other_parts: list[str] = []
    for name, entry in entries.items():
        if name in needed or name in unused or names.is_unused(name):
            continue
        if names.is_of_other_part(name):
            other_parts.append(name)
            continue
        surplus[name] = (
            f"tensor {quoted(name)} of shape {list(entry.shape)} belongs to no weight of a "
            f"{spec.family} decoder with {spec.layers} layers"
        )
    if problems or any(map(is_refused, surplus)):
        raise _error([*problems, *surplus.values()], where)
    if surplus:
        warn_caller(_warning(list(surplus.values()), where))
    if other_parts:
        warn_caller(_of_other_parts(other_parts, where))
    return tuple(sources)


def _problem(
    tensor: str, slot: WeightSlot, entry: TensorEntry | None, storages: Collection[str]
) -> str | None:
    """Return what is wrong with a slot's tensor, or None."""
    shape = (slot.rows,) if slot.cols == 1 else (slot.rows, slot.cols)
    if entry is None:
        return f"tensor {quoted(tensor)} of shape {list(shape)} is missing"
    if entry.shape != shape:
        return f"tensor {quoted(tensor)} must have shape {list(shape)}, but has {list(entry.shape)}"
    allowed = UNQUANTIZED if slot.cols == 1 else sorted(storages)
    if entry.kind not in allowed:
        return (
            f"tensor {quoted(tensor)} must be stored as one of {', '.join(allowed)}, but is "
            f"{entry.kind}"
        )
    return None


def _warning(surplus: list[str], where: str) -> str:
    if len(surplus) == 1:
        return f"load: {where}: {surplus[0]}. It is not read."
    return (
        f"load: {where}: {surplus[0]}, and the same is true of {len(surplus) - 1} more. These "
        "tensors are not read."
    )


def _of_other_parts(tensors: list[str], where: str) -> str:
    more, are = (f" and {len(tensors) - 1} more", "are") if len(tensors) > 1 else ("", "is")
    return (
        f"load: {where}: tensor {quoted(tensors[0])}{more} {are} for images or sound and {are} not "
        "read. The model takes only text."
    )


def _error(problems: list[str], where: str) -> CheckpointError:
    if len(problems) == 1:
        return CheckpointError(f"load: {where}: {problems[0]}.")
    lines = problems[:_MAX_LISTED]
    if len(problems) > len(lines):
        lines.append(f"and {len(problems) - len(lines)} more")
    return CheckpointError(
        f"load: {where} does not match its own description in {len(problems)} places:\n  "
        + "\n  ".join(lines)
    )


def split_fused(
    spec: DecoderSpec, names: WeightNames, entries: Mapping[str, TensorEntry], where: str
) -> Mapping[str, TensorEntry]:
    """Replace each fused tensor with entries for its parts.

    A tensor whose parts the decoder lacks stays as it is.

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
                parts = _parts_of(found.pop(tensor), held, fused.groups(spec), where)
                names_of_parts = (names.tensor(slot.name) for slot in held)
                found.update(zip(names_of_parts, parts, strict=True))
    return found


def _parts_of(
    entry: TensorEntry, slots: Sequence[WeightSlot], groups: int, where: str
) -> Iterator[TensorEntry]:
    """Yield each part's entry. The tensor consists of `groups` equal groups with all parts."""
    cols = slots[0].cols
    shape = _shape_of(sum(slot.rows for slot in slots), cols)
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
            shape=_shape_of(slot.rows, cols),
            offset=offset,
            size=slot.rows * of_row,
            run_bytes=0 if groups == 1 else run,
            stride_bytes=0 if groups == 1 else stride,
        )
        offset += run


def _shape_of(rows: int, cols: int) -> tuple[int, ...]:
    return (rows,) if cols == 1 else (rows, cols)
