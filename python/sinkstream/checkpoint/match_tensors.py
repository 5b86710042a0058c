"""Matches the weights that a decoder needs with the tensors that a checkpoint has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from sinkstream.checkpoint.checkpoint import Storage, TensorEntry, TensorSource
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
        shape = shape_of(spec, slot)
        problem = _problem(tensor, slot, shape, entries.get(tensor), storages)
        if problem is not None:
            problems.append(problem)
        else:
            entry = entries[tensor]
            sources.append(
                TensorSource(
                    slot,
                    tensor,
                    entry.kind,
                    added=names.added_to(slot.name),
                    is_transposed=entry.is_transposed,
                )
            )
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


def shape_of(spec: DecoderSpec, slot: WeightSlot) -> tuple[int, ...]:
    """Return the shape of a slot's tensor; the core has the taps of a convolution as a vector."""
    if slot.name.endswith(".conv"):
        return (spec.hidden_size, slot.rows // spec.hidden_size)
    return (slot.rows,) if slot.cols == 1 else (slot.rows, slot.cols)


def _problem(
    tensor: str,
    slot: WeightSlot,
    shape: tuple[int, ...],
    entry: TensorEntry | None,
    storages: Collection[str],
) -> str | None:
    """Return what is wrong with a slot's tensor, or None."""
    if entry is None:
        return f"tensor {quoted(tensor)} of shape {list(shape)} is missing"
    if _without_ones(entry.shape) != _without_ones(shape):
        return f"tensor {quoted(tensor)} must have shape {list(shape)}, but has {list(entry.shape)}"
    allowed = UNQUANTIZED if slot.cols == 1 else sorted(storages)
    if entry.kind not in allowed:
        return (
            f"tensor {quoted(entry.name)} must be stored as one of {', '.join(allowed)}, but is "
            f"{entry.kind}"
        )
    return None


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the same numbers: some formats have matrices of one row as vectors."""
    return tuple(size for size in shape if size != 1)


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
    problems = list(dict.fromkeys(problems))  # one for each expert of a tensor
    if len(problems) == 1:
        return CheckpointError(f"load: {where}: {problems[0]}.")
    lines = problems[:_MAX_LISTED]
    if len(problems) > len(lines):
        lines.append(f"and {len(problems) - len(lines)} more")
    return CheckpointError(
        f"load: {where} does not match its own description in {len(problems)} places:\n  "
        + "\n  ".join(lines)
    )
