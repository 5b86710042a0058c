"""Opens a GGUF file, or all parts of one: headers now, the text format later.

A part, such as `model-00001-of-00003.gguf`, is a complete GGUF file with some of the tensors; the
first part has the metadata.
"""

from __future__ import annotations

import math
import os
import re
import struct
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkstream.checkpoint.bounded_file import File, is_there
from sinkstream.checkpoint.checkpoint import (
    STORAGE_BLOCKS,
    FileSource,
    GgufText,
    TensorEntry,
    TensorsOnly,
)
from sinkstream.checkpoint.families import ARCHITECTURES, GgufDescription, find_family
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.formats.gguf_header import MAX_ENTRIES, GgufHeader, read_gguf_header
from sinkstream.checkpoint.fused_tensors import split_fused
from sinkstream.checkpoint.match_tensors import match_tensors
from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.sampling_defaults import generation_from_gguf
from sinkstream.errors import CheckpointError

DIVISORS = "rope_freqs.weight"
"""The tensor of numbers by which the frequencies of the base are divided (llama3)."""
SHORT_DIVISORS, LONG_DIVISORS = "rope_factors_short.weight", "rope_factors_long.weight"
"""Longrope's divisors, for a short and for a long cache."""
_DECODER_PARTS = ("blk", "output", "position_", "rope_", "token_")
_MAX_DIVISORS = 512  # half of the largest head
_MIN_DIVISOR, _MAX_DIVISOR = 1e-3, 1e6
MAX_PARTS = 1024  # files that are open at once; the largest models have 50
_MAX_COUNT = 99_999  # that a name has room for
_MAX_LISTED = 3
_NAME = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)
_OF_ONE_PART = ("general.alignment", "split.no")


@dataclass(frozen=True, slots=True)
class PartName:
    """The parsed name of a part."""

    stem: str
    number: int
    """From 1."""
    count: int

    def __str__(self) -> str:
        """Return the file name."""
        return f"{self.stem}-{self.number:05}-of-{self.count:05}.gguf"

    def other(self, number: int) -> PartName:
        """Return another part of the same set."""
        return PartName(self.stem, number, self.count)


@dataclass(frozen=True, slots=True)
class GgufModel:
    """The header of a file, or of all parts of one."""

    path: Path
    """Of the file, or of its first part."""
    header: GgufHeader


def open_gguf(path: Path) -> TensorsOnly:
    """Open a GGUF file: read its header and check it against the file, but read no tensors.

    If the file is split into parts, `path` may be any part; all of them are opened.

    Raises:
        CheckpointError: The file is not a GGUF file, is damaged, or is not supported.
    """
    opened = read_gguf(path)
    header, where = opened.header, opened.path.name
    source = FileSource(header.tensors)
    try:
        if header.metadata.get("general.type") == "adapter":
            raise CheckpointError(
                f"load: {where} must be a model, but is a LoRA adapter. Merge the adapter into "
                "its model first."
            )
        name = Fields(header.metadata, where).word("general.architecture")
        family = find_family(name, f"{where} has architecture", ARCHITECTURES)
        is_long = _check_factors(header, where)
        spec = family.spec_from_gguf(
            GgufDescription(
                metadata=Fields(header.metadata, where, f"{name}."),
                tensors=frozenset(header.tensors),
                tokens=_count_tokens(header),
                rope_divisors=_read_divisors(header, SHORT_DIVISORS if is_long else DIVISORS),
                long_divisors=_read_divisors(header, LONG_DIVISORS),
            )
        )
        names = family.gguf_names.of(spec)
        entries = split_fused(spec, names, header.tensors, where)
        source = FileSource(header.tensors, entries)
        tensors = match_tensors(
            spec,
            names,
            entries,
            STORAGE_BLOCKS,
            (),
            where,
            lambda name: _is_of_decoder(name, spec.layers),
        )
        return TensorsOnly(
            path=str(opened.path),
            spec=spec,
            tensors=tensors,
            source=source,
            generation=generation_from_gguf(header.metadata, where),
            text=GgufText(header.metadata),
        )
    except BaseException:
        source.close()
        raise


def _is_of_decoder(tensor: str, layers: int) -> bool:
    """Return whether a tensor takes part in the arithmetic that llama.cpp would do.

    GGUF has no switches: a bias or a norm is used if it is present, so none is ignored.
    """
    part, _, number = tensor.partition(".")
    number = number.partition(".")[0]
    if part == "blk" and number.isdecimal():
        return int(number) < layers
    return part.startswith(_DECODER_PARTS)


def _count_tokens(header: GgufHeader) -> int:
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, list) else 0


def _check_factors(header: GgufHeader, where: str) -> bool:
    """Return whether the longrope tensors are present: either both are, or neither."""
    held = [name for name in (SHORT_DIVISORS, LONG_DIVISORS) if name in header.tensors]
    if len(held) == 1:
        raise CheckpointError(
            f"load: {where} must have both tensors {quoted(SHORT_DIVISORS)} and "
            f"{quoted(LONG_DIVISORS)}, or neither, but has only {quoted(held[0])}."
        )
    return bool(held)


def _read_divisors(header: GgufHeader, name: str) -> tuple[float, ...] | None:
    """Read divisors of the rotary frequencies, the only tensors that a spec depends on."""
    entry = header.tensors.get(name)
    if entry is None:
        return None
    what, file = f"tensor {quoted(name)}", entry.file
    if entry.kind != "F32" or len(entry.shape) != 1 or entry.shape[0] > _MAX_DIVISORS:
        raise CheckpointError(
            f"load: {file.name}: {what} must hold at most {_MAX_DIVISORS} numbers of type F32, "
            f"but has shape {list(entry.shape)} and type {entry.kind}."
        )
    count = entry.shape[0]
    divisors = struct.unpack(f"<{count}f", file.read(entry.offset, 4 * count, what))
    for divisor in divisors:
        if not _MIN_DIVISOR <= divisor <= _MAX_DIVISOR or not math.isfinite(divisor):
            raise CheckpointError(
                f"load: {file.name}: {what} must hold numbers from {_MIN_DIVISOR:g} to "
                f"{_MAX_DIVISOR:g}, but holds {divisor}."
            )
    return divisors


def part_name(name: str) -> PartName | None:
    """Parse the name of a part; return None for the name of any other file."""
    found = _NAME.fullmatch(name)
    return None if found is None else PartName(found[1], int(found[2]), int(found[3]))


def read_gguf(path: Path) -> GgufModel:
    """Read and check the header of a GGUF file; for a part, the headers of all parts.

    The files of the tensors stay open, the others are closed.

    Raises:
        CheckpointError: A file is damaged; parts are missing, out of order, or from a different
            model.
    """
    with ExitStack() as on_error:
        file = _open(path, on_error)
        header = read_gguf_header(file)
        count = _count_of(header, file.name)
        if count > 1:
            file.close()
            folder, parsed = _find_part(path, count, header)
            header = _read_parts(folder, parsed, on_error)
            path = folder / str(parsed.other(1))
        elif not header.tensors:
            file.close()
        on_error.pop_all()
        return GgufModel(path, header)


def existing_parts(path: Path) -> list[Path]:
    """Return a model's files that exist, in order: all parts of a set, or the file itself."""
    parsed = part_name(path.name)
    if parsed is None or parsed.count > MAX_PARTS:
        return [path]
    parts = [path.with_name(str(parsed.other(i))) for i in range(1, parsed.count + 1)]
    return [part for part in parts if os.path.lexists(part)] or [path]


def _open(path: Path, on_error: ExitStack) -> File:
    file = File(path)
    on_error.callback(file.close)
    return file


def _count_of(header: GgufHeader, name: str) -> int:
    # Merged files may say 0.
    return Fields(header.metadata, name).whole("split.count", 0, _MAX_COUNT, 1)


def _find_part(path: Path, count: int, header: GgufHeader) -> tuple[Path, PartName]:
    """Return the folder of the parts and the name of one of them, after checking that all exist."""
    # A link may have a name of its own.
    candidates = (path, Path(os.path.realpath(path)))
    found = next((named for named in candidates if part_name(named.name)), None)
    parsed = None if found is None else part_name(found.name)
    if found is None or parsed is None:
        number = header.metadata.get("split.no")
        number = number + 1 if type(number) is int and 0 <= number < count else 1
        raise CheckpointError(
            f"load: the name of {path.name} must end in -{number:05}-of-{count:05}.gguf, but does "
            "not. It is one of several parts, and the others are found by their names."
        )
    _check_count(found.name, count, parsed.count)
    if count > MAX_PARTS:
        raise CheckpointError(
            f"load: {found.name} must be one of at most {MAX_PARTS} parts, but is one of {count}. "
            "Merge them first: llama-gguf-split --merge"
        )
    names = [str(parsed.other(number)) for number in range(1, count + 1)]
    missing = [name for name in names if not is_there(found.with_name(name))]
    if missing:
        listed = ", ".join(missing[:_MAX_LISTED])
        more = f" and {len(missing) - _MAX_LISTED} more" if len(missing) > _MAX_LISTED else ""
        raise CheckpointError(
            f"load: all {count} parts of {found.name} must be in its folder, but {listed}{more} "
            f"{'is' if len(missing) == 1 else 'are'} missing."
        )
    return found.parent, parsed


def _check_count(name: str, count: int, expected: int) -> None:
    if count != expected:
        raise CheckpointError(
            f"load: {name}: `split.count` must be {expected}, as the name says, but is {count}."
        )


def _read_parts(folder: Path, parsed: PartName, on_error: ExitStack) -> GgufHeader:
    """Read and check all parts, and merge their headers."""
    first: dict[str, Any] = {}
    first_name = str(parsed.other(1))
    tensors: dict[str, TensorEntry] = {}
    for number in range(1, parsed.count + 1):
        file = _open(folder / str(parsed.other(number)), on_error)
        header = read_gguf_header(file)
        first = first or header.metadata
        _check_count(file.name, _count_of(header, file.name), parsed.count)
        _check_number(file.name, header.metadata, number)
        _check_same_model(file.name, header.metadata, first_name, first)
        _add(tensors, header)
        if not header.tensors:  # the first part may have metadata only
            file.close()
    fields = Fields(first, first_name)
    if fields.has("split.tensors.count"):
        expected = fields.whole("split.tensors.count", 0, MAX_ENTRIES)
        if expected != len(tensors):
            raise CheckpointError(
                f"load: {first_name}: `split.tensors.count` must be {len(tensors)}, the number of "
                f"tensors in all {parsed.count} parts, but is {expected}."
            )
    return GgufHeader(first, tensors)


def _check_number(name: str, metadata: dict[str, Any], number: int) -> None:
    found = Fields(metadata, name).whole("split.no", 0, _MAX_COUNT)
    if found != number - 1:
        raise CheckpointError(
            f"load: {name}: `split.no` must be {number - 1}, as the name says, but is {found}. "
            "The parts are out of order."
        )


def _check_same_model(
    name: str, metadata: dict[str, Any], first_name: str, first: dict[str, Any]
) -> None:
    for key, value in metadata.items():
        if key in first and value != first[key] and key not in _OF_ONE_PART:
            raise CheckpointError(
                f"load: {name}: `{key}` must be {quoted(first[key])}, as in {first_name}, but is "
                f"{quoted(value)}. The parts belong to different models."
            )


def _add(tensors: dict[str, TensorEntry], header: GgufHeader) -> None:
    for name, entry in header.tensors.items():
        if name in tensors:
            raise CheckpointError(
                f"load: tensor {quoted(name)} is both in {tensors[name].file.name} and in "
                f"{entry.file.name}. The parts belong to different models."
            )
        tensors[name] = entry
    if len(tensors) > MAX_ENTRIES:
        raise CheckpointError(
            f"load: the parts must have at most {MAX_ENTRIES} tensors in total, but have "
            f"{len(tensors)}."
        )
