"""Opens a GGUF file, or all parts of one: headers now, the text format later."""

from __future__ import annotations

import math
import struct
from pathlib import Path

from sinkstream.checkpoint.checkpoint import GgufText, TensorsOnly
from sinkstream.checkpoint.families import ARCHITECTURES, GgufDescription, find_family
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.formats.gguf_header import GgufHeader
from sinkstream.checkpoint.formats.gguf_split import read_gguf
from sinkstream.checkpoint.fused import split_fused
from sinkstream.checkpoint.match_tensors import match_tensors
from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.sampling_defaults import generation_from_gguf
from sinkstream.checkpoint.storage import STORAGE_BLOCKS
from sinkstream.checkpoint.tensors import FileSource
from sinkstream.errors import CheckpointError

DIVISORS = "rope_freqs.weight"
"""The tensor of numbers by which the frequencies of the base are divided (llama3)."""
SHORT_DIVISORS, LONG_DIVISORS = "rope_factors_short.weight", "rope_factors_long.weight"
"""Longrope's divisors, for a short and for a long cache."""
_DECODER_PARTS = ("blk", "output", "position_", "rope_", "token_")
_MAX_DIVISORS = 512  # half of the largest head
_MIN_DIVISOR, _MAX_DIVISOR = 1e-3, 1e6


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
