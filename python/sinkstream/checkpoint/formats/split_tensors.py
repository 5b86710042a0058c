"""Finds the tensors of a quantized matrix in a Hugging Face folder, and checks them.

csrc/kernels/pack_split.h says what a format's tensors are; docs/decisions has their formulas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from sinkstream.checkpoint.checkpoint import SplitMatrix, TensorEntry, TensorSource
from sinkstream.checkpoint.formats.quantization_config import FolderQuantization
from sinkstream.checkpoint.fused_tensors import part_name
from sinkstream.checkpoint.match_tensors import UNQUANTIZED, SplitFound
from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.spec import WeightSlot

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

OF_ACTIVATIONS = (
    ".activation_scale", ".input_scale", ".input_scale_ub", ".input_zero_point", ".k_scale",
    ".output_scale", ".q_scale", ".v_scale",
)  # fmt: skip
"""Ends of names of tensors for activations in 8 bits, which the decoder does not round so."""

_UNIT = 32  # columns: csrc/kernels/panel_format.h
_CODES = {"awq": ".qweight", "gptq": ".qweight", "packed": ".weight_packed"}
_FP8_SCALES = (".weight_scale_inv", ".weight_scale", ".scale")
_HALF = ("BF16", "F16")


def find_split(
    quantization: FolderQuantization | None,
    tensor: str,
    slot: WeightSlot,
    entries: Mapping[str, TensorEntry],
) -> SplitFound | None:
    """Return the tensors of a matrix, or what is wrong with them; None if it is not quantized.

    Reads the order of columns, which is small, but no codes and no scales. `tensor` is the name
    that the matrix would have if it were not quantized.
    """
    if quantization is None or slot.cols == 1 or slot.name == "embedding":
        return None
    plain = entries.get(tensor)
    module = tensor.removesuffix(".weight")
    search = _Search(quantization, module, slot, entries)
    if quantization.kind == "mxfp4":
        if not tensor.endswith("]") or plain is not None:  # experts only
            return None
        _find_mxfp4(search)
    elif quantization.kind == "fp8":
        if plain is None or plain.kind in UNQUANTIZED:
            return None
        _find_fp8(search, plain)
    else:
        if module + _CODES[quantization.kind] not in entries and plain is not None:
            return None
        if quantization.kind == "packed":
            _find_packed(search)
        else:
            _find_by_columns(search, quantization.kind)
    return search.found()


@dataclass(slots=True)
class _Search:
    """Collects the tensors of one matrix, and what is wrong with them."""

    quantization: FolderQuantization
    module: str
    slot: WeightSlot
    entries: Mapping[str, TensorEntry]
    names: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    source: TensorSource | None = None

    def found(self) -> SplitFound:
        source = None if self.problems else self.source
        return SplitFound(tuple(self.names), source, tuple(self.problems))

    def has(self, end: str) -> bool:
        return self.module + end in self.entries

    def take(
        self, end: str, shape: tuple[int, ...], kinds: tuple[str, ...], *others: tuple[int, ...]
    ) -> TensorEntry | None:
        """Return a tensor if it has the shape, or one of the others, and one of the types."""
        name = part_name(self.module, end)
        self.names.append(name)
        entry = self.entries.get(name)
        if entry is None:
            self.problems.append(f"tensor {quoted(name)} of shape {list(shape)} is missing")
        elif entry.shape not in (shape, *others):
            self.problems.append(
                f"tensor {quoted(name)} must have shape {list(shape)}, but has {list(entry.shape)}"
            )
        elif entry.kind not in kinds:
            self.problems.append(
                f"tensor {quoted(name)} must be stored as {' or '.join(kinds)}, but is {entry.kind}"
            )
        else:
            return entry
        return None

    def refuse(self, end: str, rule: str) -> None:
        self.problems.append(f"tensor {quoted(part_name(self.module, end))} must {rule}")

    def group_of(self, group: int, end: str) -> int | None:
        """Return how many columns share a scale, if kernels can read such groups."""
        group = self.slot.cols if group == -1 else group
        if group % _UNIT or self.slot.cols % group:
            self.refuse(
                end,
                f"have a group size that is a multiple of {_UNIT} and divides its {self.slot.cols} "
                f"columns, but has groups of {group}",
            )
            return None
        return group

    def give(self, storage: str, split: SplitMatrix) -> None:
        self.source = TensorSource(self.slot, split.tensors[0], storage, split=split)


def _find_by_columns(search: _Search, kind: Literal["awq", "gptq"]) -> None:
    """AWQ and GPTQ: tensors with a row for every input."""
    quantization, rows, cols = search.quantization, search.slot.rows, search.slot.cols
    bits = quantization.bits or _bits_by_shape(search, ".qweight", cols)
    group = quantization.group or _group_by_shape(search, ".scales", 0)
    if bits is None or group is None or (group := search.group_of(group, ".scales")) is None:
        return
    if rows * bits % 32:
        rule = f"have a number of outputs that is a multiple of {32 // bits}"
        search.refuse(".qweight", f"{rule}, but has {rows}")
        return
    groups, words = cols // group, rows * bits // 32
    codes = (cols, words) if kind == "awq" else (cols * bits // 32, rows)
    found = (
        search.take(".qweight", codes, ("I32",)),
        search.take(".scales", (groups, rows), _HALF),
        search.take(".qzeros", (groups, words), ("I32",)),
    )
    order = b""
    if kind == "gptq" and (search.has(".g_idx") or quantization.has_order):
        entry = search.take(".g_idx", (cols,), ("I32",))
        if entry is not None:
            order = _order(search, entry, ".g_idx", group)
    _give(search, kind, bits, group, found, order)


def _find_packed(search: _Search) -> None:
    """compressed-tensors: tensors with a row for every output."""
    quantization, rows, cols = search.quantization, search.slot.rows, search.slot.cols
    bits = quantization.bits or _bits_by_shape(search, ".weight_packed", cols, axis=1)
    group = quantization.group or _group_by_shape(search, ".weight_scale", 1)
    if bits is None or group is None or (group := search.group_of(group, ".weight_scale")) is None:
        return
    groups, per_word = cols // group, 32 // bits
    has_zero_points = quantization.has_zero_points
    if has_zero_points is None:
        has_zero_points = search.has(".weight_zero_point")
    found: tuple[TensorEntry | None, ...] = (
        search.take(".weight_packed", (rows, cols // per_word), ("I32",)),
        search.take(".weight_scale", (rows, groups), _HALF),
    )
    if has_zero_points:
        shape = (-(-rows // per_word), groups)
        found += (search.take(".weight_zero_point", shape, ("I32",)),)
    shape_entry = search.take(".weight_shape", (2,), ("I32", "I64"))
    if shape_entry is not None:
        stored = _integers(shape_entry).tolist()
        if stored != [rows, cols]:
            search.refuse(".weight_shape", f"hold [{rows}, {cols}], but holds {stored}")
    order = b""
    if search.has(".weight_g_idx") or quantization.has_order:
        entry = search.take(".weight_g_idx", (cols,), ("I32", "I64"))
        if entry is not None:
            order = _order(search, entry, ".weight_g_idx", group)
    _give(search, "rows", bits, group, found, order)


def _give(
    search: _Search,
    layout: Literal["awq", "gptq", "rows"],
    bits: int,
    group: int,
    found: tuple[TensorEntry | None, ...],
    order: bytes,
) -> None:
    entries = tuple(entry for entry in found if entry is not None)
    if len(entries) < len(found):
        return
    has_zero_points = len(entries) == 3
    middle = 1 << (bits - 1)
    split = SplitMatrix(
        layout=layout,
        tensors=tuple(entry.name for entry in entries),
        file_bytes=sum(entry.size for entry in entries),
        scale_type=entries[1].kind,
        group=group,
        zero_point=search.quantization.zero_point if has_zero_points else middle,
        order=order,
    )
    search.give(f"INT{bits}", split)


def _find_fp8(search: _Search, weight: TensorEntry) -> None:
    rows, cols, block = search.slot.rows, search.slot.cols, search.quantization.block
    if block is None and weight.name != search.module + ".weight":
        search.names.append(search.module + ".weight")
        search.problems.append(
            f"tensor {quoted(weight.name)} must have scales for blocks (`weight_block_size` of "
            "`quantization_config`) because it holds several matrices, but has none"
        )
        return
    search.take(".weight", (rows, cols), ("F8_E4M3",))
    end = next((end for end in _FP8_SCALES if search.has(end)), "." + search.quantization.scale)
    grid = None if block is None else (-(-rows // block[0]), -(-cols // block[1]))
    found = search.take(
        end, grid or (rows, 1), ("BF16", "F16", "F32"), (), (1,), (1, 1), (rows,), (rows, 1)
    )
    if found is None:
        return
    if found.is_transposed != weight.is_transposed:
        search.refuse(end, f"be transposed if tensor {quoted(weight.name)} is, and only then")
        return
    if block is not None and found.shape == grid:
        scale_rows, group = block[0], min(block[1], cols)
    else:
        scale_rows, group = (1 if found.shape in ((rows,), (rows, 1)) else rows), cols
    if math.gcd(group, cols) % _UNIT:
        search.refuse(
            end,
            f"hold scales for blocks whose width is a multiple of {_UNIT}, in a matrix whose "
            f"number of columns is also a multiple of {_UNIT}, but the width is {group}, and the "
            f"matrix has {cols} columns",
        )
        return
    split = SplitMatrix(
        layout="columns" if weight.is_transposed else "rows",
        tensors=(search.module + ".weight", search.module + end),
        file_bytes=weight.size + found.size,
        scale_type=found.kind,
        group=group,
        scale_rows=scale_rows,
    )
    search.give("FP8", split)


def _find_mxfp4(search: _Search) -> None:
    """gpt-oss: the blocks of 32 columns of all experts in one tensor, and their scales."""
    rows, cols = search.slot.rows, search.slot.cols
    if cols % _UNIT:
        search.refuse("_blocks", f"have a multiple of {_UNIT} columns, but has {cols}")
        return
    blocks = search.take("_blocks", (rows, cols // _UNIT, _UNIT // 2), ("U8",))
    scales = search.take("_scales", (rows, cols // _UNIT), ("U8",))
    if blocks is None or scales is None:
        return
    split = SplitMatrix(
        layout="rows",
        tensors=tuple(search.names),
        file_bytes=blocks.size + scales.size,
        scale_type="MXFP4",
        group=_UNIT,
    )
    search.give("MXFP4", split)


def _bits_by_shape(search: _Search, end: str, cols: int, axis: int = 0) -> int | None:
    entry = search.entries.get(search.module + end)
    words = entry.shape[axis] if entry is not None and len(entry.shape) == 2 else 0
    bits = 32 * words // cols
    if bits not in (4, 8) or 32 * words % cols:
        search.names.append(search.module + end)
        search.refuse(
            end,
            f"hold 4 or 8 bits for each of {cols} columns, but holds {words} 32-bit words",
        )
        return None
    return bits


def _group_by_shape(search: _Search, end: str, axis: int) -> int | None:
    entry = search.entries.get(search.module + end)
    groups = entry.shape[axis] if entry is not None and len(entry.shape) == 2 else 0
    if groups == 0 or search.slot.cols % groups:
        search.names.append(search.module + end)
        rule = f"have a number of groups that divides its {search.slot.cols} columns"
        search.refuse(end, f"{rule}, but has {groups}")
        return None
    return search.slot.cols // groups


def _integers(entry: TensorEntry) -> npt.NDArray[np.integer]:
    import numpy as np

    return np.frombuffer(entry.read(), "<i8" if entry.kind == "I64" else "<i4")


def _order(search: _Search, entry: TensorEntry, end: str, group: int) -> bytes:
    """Return the columns in the order of their groups; empty if they have that order.

    `entry` holds the group of each column.
    """
    import numpy as np

    cols = search.slot.cols
    groups = _integers(entry)
    in_order = np.arange(cols) // group
    is_unset = -1 if search.quantization.kind == "packed" else 0
    if np.array_equal(groups, in_order):
        return b""
    if not search.quantization.has_order and np.all(groups == is_unset):
        return b""
    outside = groups[(groups < 0) | (groups >= cols // group)]
    if outside.size:
        search.refuse(end, f"hold groups from 0 to {cols // group - 1}, but holds {outside[0]}")
        return b""
    counts = np.bincount(groups, minlength=cols // group)
    wrong = np.flatnonzero(counts != group)
    if wrong.size:
        search.refuse(
            end,
            f"give {group} columns to each group, but gives {counts[wrong[0]]} to group {wrong[0]}",
        )
        return b""
    return np.argsort(groups, kind="stable").astype("<i4").tobytes()
