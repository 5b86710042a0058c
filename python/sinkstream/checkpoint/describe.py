"""What the headers of a checkpoint say about it, whether or not it can be loaded.

Never raises for what a file says: what cannot be read is left out.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkstream.checkpoint.bounded_file import File, read_json
from sinkstream.checkpoint.checkpoint import STORAGE_BLOCKS, GgufText, TensorsOnly
from sinkstream.checkpoint.formats.gguf import existing_parts
from sinkstream.checkpoint.formats.gguf_header import (
    BLOCK_TYPES,
    Declarations,
    read_declarations,
)
from sinkstream.checkpoint.formats.safetensors_header import DTYPE_BYTES, read_safetensors_header
from sinkstream.checkpoint.stores.folders import is_folder
from sinkstream.errors import CheckpointError

_MAX_JSON_BYTES = 4 << 20
_MAX_SHARDS = 1024
_MAX_WORD = 40  # characters; a longer string in a file is ignored

FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K",
    11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S",
    17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS",
    23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M",
    30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip
"""`general.file_type`: the mix of block types that a quantizer was told to make."""


@dataclass(frozen=True, slots=True)
class TypeShare:
    """The tensors of one block type."""

    tensors: int
    numbers: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Description:
    """What a checkpoint says about itself; None for what it does not say."""

    family: str | None
    """The architecture of a GGUF file, the model_type of a folder."""
    quantization: str | None
    """`"Q4_K_M"`, `"awq"`, …; without such a name, the type with the most bytes."""
    file_bytes: int
    """The bytes of all files with weights."""
    types: Mapping[str, TypeShare]
    """By block type, most bytes first."""
    tokenizer: str | None
    has_chat_template: bool

    @property
    def parameters(self) -> int:
        """Return how many numbers the tensors have."""
        return sum(share.numbers for share in self.types.values())


def describe(path: Path) -> Description:
    """Read the headers of a GGUF file, of all its parts, or of a folder; no tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _describe_folder(path) if is_folder(path) else _describe_gguf(path)


def describe_opened(opened: TensorsOnly) -> Description:
    """Describe an open checkpoint without reading its headers again. Types: only those in use."""
    path = Path(opened.path)
    types = _shares(
        (tensor.storage, tensor.slot.rows * tensor.slot.cols, tensor.file_bytes)
        for tensor in opened.tensors
    )
    if isinstance(opened.text, GgufText):
        size = sum(map(_size, existing_parts(path)))
        return _of_metadata(opened.text.metadata, types, size)
    size = sum(map(_size, path.glob("*.safetensors")))
    return _of_folder(path, opened.text.config, types, size)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # it has gone since it was opened
        return 0


def _describe_gguf(path: Path) -> Description:
    metadata: dict[str, Any] = {}
    found: list[tuple[str, int, int]] = []
    size = 0
    for part in existing_parts(path):
        declared = Declarations()
        with suppress(CheckpointError):
            file = File(part)
            try:
                size += file.size
                with suppress(CheckpointError):
                    read_declarations(file, declared)
            finally:
                file.close()
            metadata = metadata or declared.metadata
            found += _sizes(declared, file.size)
    return _of_metadata(metadata, _shares(found), size)


def _of_metadata(
    metadata: Mapping[str, Any], types: Mapping[str, TypeShare], size: int
) -> Description:
    number = metadata.get("general.file_type")
    named = FILE_TYPES.get(number) if type(number) is int else None
    tokenizer = _word(metadata, "tokenizer.ggml.model")
    pre = _word(metadata, "tokenizer.ggml.pre")
    return Description(
        family=_word(metadata, "general.architecture"),
        quantization=named or next(iter(types), None),
        file_bytes=size,
        types=types,
        tokenizer=f"{tokenizer} ({pre})" if tokenizer and pre else tokenizer,
        has_chat_template=isinstance(metadata.get("tokenizer.chat_template"), str),
    )


def _sizes(declared: Declarations, file_bytes: int) -> Iterator[tuple[str, int, int]]:
    """Yield the type, the numbers and the bytes of every tensor.

    Tensors of a type that cannot be loaded end where the next one begins.
    """
    ordered = sorted(declared.tensors, key=lambda tensor: tensor.offset)
    ends = [*(tensor.offset for tensor in ordered[1:]), file_bytes - declared.end]
    for tensor, end in zip(ordered, ends, strict=False):  # without tensors there is one end
        kind = BLOCK_TYPES.get(tensor.block_type, f"type {tensor.block_type}")
        numbers = math.prod(tensor.sizes)
        if kind in STORAGE_BLOCKS:
            block, size = STORAGE_BLOCKS[kind]
            yield kind, numbers, numbers // block * size
        else:
            yield kind, numbers, max(0, end - tensor.offset)


def _describe_folder(folder: Path) -> Description:
    found: list[tuple[str, int, int]] = []
    size = 0
    for path in sorted(folder.glob("*.safetensors"))[:_MAX_SHARDS]:
        with suppress(CheckpointError):
            file = File(path)
            try:
                size += file.size
                tensors = read_safetensors_header(file).values()
            finally:
                file.close()
            counts = ((entry.kind, math.prod(entry.shape)) for entry in tensors)
            found += ((kind, count, count * DTYPE_BYTES[kind]) for kind, count in counts)
    return _of_folder(folder, _json(folder / "config.json"), _shares(found), size)


def _of_folder(
    folder: Path, config: Mapping[str, Any], types: Mapping[str, TypeShare], size: int
) -> Description:
    tokenizer_config = _json(folder / "tokenizer_config.json")
    quantized = config.get("quantization_config")
    named = _word(quantized, "quant_method") if isinstance(quantized, dict) else None
    has_template = "chat_template" in tokenizer_config or _has(folder, "chat_template.jinja")
    return Description(
        family=_word(config, "model_type"),
        quantization=named or next(iter(types), None),
        file_bytes=size,
        types=types,
        tokenizer="tokenizer.json" if _has(folder, "tokenizer.json") else None,
        has_chat_template=has_template,
    )


def _has(folder: Path, name: str) -> bool:
    return os.path.lexists(folder / name)


def _json(path: Path) -> dict[str, Any]:
    try:
        return read_json(path, _MAX_JSON_BYTES)
    except CheckpointError:
        return {}


def _word(values: Mapping[str, Any], name: str) -> str | None:
    value = values.get(name)
    return value if isinstance(value, str) and 0 < len(value) <= _MAX_WORD else None


def _shares(found: Iterable[tuple[str, int, int]]) -> dict[str, TypeShare]:
    shares: dict[str, TypeShare] = {}
    for kind, numbers, size in found:
        share = shares.get(kind, TypeShare(0, 0, 0))
        shares[kind] = TypeShare(share.tensors + 1, share.numbers + numbers, share.bytes + size)
    return dict(sorted(shares.items(), key=lambda item: -item[1].bytes))
