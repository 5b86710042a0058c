"""Writes a 16-bit or 32-bit checkpoint as a GGUF file whose matrices are quantized.

Several threads quantize pieces of a tensor; memory holds only a few pieces at a time.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from sinkstream import _core
from sinkstream.checkpoint.bounded_file import File
from sinkstream.checkpoint.checkpoint import (
    FileSource,
    GgufText,
    Storage,
    TensorEntry,
    TensorsOnly,
    as_float32,
    row_bytes,
)
from sinkstream.checkpoint.describe import FILE_TYPES
from sinkstream.checkpoint.formats.gguf_header import BLOCK_TYPES, raw_metadata, round_up
from sinkstream.checkpoint.match_tensors import UNQUANTIZED
from sinkstream.checkpoint.open_tensors import open_tensors
from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.spec import DecoderSpec
from sinkstream.errors import CheckpointError, InvalidArgument
from sinkstream.export.gguf_model import GgufModel, GgufTensor, encoded, quantized_already, string
from sinkstream.export.model_from_folder import model_from_folder
from sinkstream.export.quantized_mixes import VALUES, Decoder, MatrixRole, is_quantized, type_of
from sinkstream.files import expand_home, replace_whole
from sinkstream.request.checks import as_int

_PIECE_NUMBERS = 1 << 19  # that a thread rounds at a time: about a hundredth of a second
_QUANTIZATION_VERSION = 2
_BLOCK_NUMBERS = {name: number for number, name in BLOCK_TYPES.items()}
_FILE_NUMBERS = {name: number for number, name in FILE_TYPES.items()}


@dataclass(frozen=True, slots=True)
class Written:
    """A file that has been written."""

    path: Path
    bytes: int
    bytes_before: int
    types: dict[str, Storage]
    """The type of every tensor, by name."""


def write_quantized(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    mix: str,
    *,
    replaces: bool = False,
    download: bool = False,
    threads: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Written:
    """Quantize the matrices of a checkpoint, and write the result as a GGUF file.

    Args:
        source: A GGUF file or a Hugging Face folder with 16-bit or 32-bit matrices, as
            `load` takes it.
        target: The file to write. It appears once it is complete.
        mix: A key of `MIXES`.
        replaces: Whether `target` may exist.
        download: As for `load`.
        threads: Number of quantizing threads; if None, one per available logical CPU.
        progress: Called with (bytes read, total bytes) of tensors.

    Raises:
        InvalidArgument: `target` exists, or `threads` is not in [1, 1024].
        CheckpointError: The source is not such a checkpoint, cannot be expressed in GGUF, or has
            numbers that no block can hold.
        OSError: The target cannot be written.
    """
    if threads is not None:
        threads = as_int("quantize", "threads", threads, 1, 1024)
    path = expand_home(target)
    if not replaces and os.path.lexists(path):
        raise InvalidArgument(
            f"quantize: the file to write must not exist, but {quoted(str(target))} does. "
            "--force replaces it.",
            param="force",
        )
    opened = open_tensors(source, download=download)
    try:
        is_gguf = isinstance(opened.text, GgufText)
        model = model_from_gguf(opened) if is_gguf else model_from_folder(opened)
        types = choose_types(model, opened.spec, mix)
        with replace_whole(path) as file:
            _write_header(file, model, types, mix)
            with _pool(threads) as pool:
                _write_tensors(file, model, types, pool, progress)
            size = file.tell()
    finally:
        opened.source.close()
    before = sum(tensor.bytes(tensor.storage) for tensor in model.tensors)
    return Written(path, size, before, types)


def choose_types(model: GgufModel, spec: DecoderSpec, mix: str) -> dict[str, Storage]:
    """Return the type of every tensor: the mix's for matrices, the source's for all others."""
    roles = {tensor.name: _role(tensor) for tensor in model.tensors}
    of_values = sorted({role.layer for role in roles.values() if role.part in VALUES})
    decoder = Decoder(
        family=spec.family,
        layers=1 + max(role.layer for role in roles.values()),
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        is_tied="output.weight" not in roles,
        experts=max((block.experts.experts for block in spec.blocks if block.experts), default=0),
    )

    def chosen(role: MatrixRole) -> Storage:
        if role.part not in VALUES:
            return type_of(mix, role, decoder)
        # llama.cpp counts the layers that have values.
        among = replace(role, layer=of_values.index(role.layer))
        return type_of(mix, among, replace(decoder, layers=len(of_values)))

    return {
        tensor.name: chosen(roles[tensor.name])
        if is_quantized(tensor.name, tensor.shape)
        else tensor.storage
        for tensor in model.tensors
    }


def _role(tensor: GgufTensor) -> MatrixRole:
    words = tensor.name.split(".")
    if words[0] == "blk" and len(words) > 2 and words[1].isdecimal():
        return MatrixRole(words[2], int(words[1]), tensor.cols)
    return MatrixRole(words[0], 0, tensor.cols)


def _write_header(file: BinaryIO, model: GgufModel, types: dict[str, Storage], mix: str) -> None:
    metadata = model.metadata | {
        "general.file_type": encoded(_FILE_NUMBERS[mix]),
        "general.quantization_version": encoded(_QUANTIZATION_VERSION),
    }
    file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(model.tensors), len(metadata)))
    for key, value in metadata.items():
        file.write(string(key) + value)
    offset = 0
    for tensor in model.tensors:
        sizes, storage = tensor.shape[::-1], types[tensor.name]
        file.write(string(tensor.name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes))
        file.write(struct.pack("<IQ", _BLOCK_NUMBERS[storage], offset))
        offset = round_up(offset + tensor.bytes(storage), model.alignment)
    _pad(file, model.alignment)


def _write_tensors(
    file: BinaryIO,
    model: GgufModel,
    types: dict[str, Storage],
    pool: ThreadPoolExecutor,
    progress: Callable[[int, int], None],
) -> None:
    total = sum(tensor.bytes(tensor.storage) for tensor in model.tensors)
    done = 0
    waiting: deque[tuple[GgufTensor, int, int, Future[bytes]]] = deque()

    def write_next() -> None:
        nonlocal done
        tensor, end, length, result = waiting.popleft()
        try:
            file.write(result.result())
        except ValueError as error:
            raise CheckpointError(
                f"quantize: tensor {quoted(tensor.name)} of {model.name} {error}."
            ) from None
        if end == tensor.rows:
            _pad(file, model.alignment)
        done += length
        progress(done, total)

    most = 2 * (pool._max_workers + 1)
    for tensor in model.tensors:
        for begin, end in _pieces(tensor):
            content = tensor.read(begin, end)
            to = types[tensor.name]
            result = pool.submit(rounded_rows, content, tensor.storage, tensor.cols, to)
            waiting.append((tensor, end, len(content), result))
            if len(waiting) >= most:
                write_next()
    while waiting:
        write_next()


def _pieces(tensor: GgufTensor) -> Iterator[tuple[int, int]]:
    step = max(1, _PIECE_NUMBERS // tensor.cols)
    for begin in range(0, tensor.rows, step):
        yield begin, min(begin + step, tensor.rows)


def rounded_rows(content: bytes, storage: Storage, cols: int, to: Storage) -> bytes:
    """Return rows of 16-bit or 32-bit numbers, converted to another type.

    Raises:
        ValueError: A number is too large for the type, infinite or NaN.
    """
    if to == storage:
        return content
    if to in UNQUANTIZED:
        rows = _plain(content, storage, to)
    else:
        rows = _core.quantize_rows(storage, content, cols, to)
    if rows is None:
        raise ValueError(
            f"must hold finite numbers within the range of {to}, but holds one that is infinite, "
            "NaN or out of range"
        )
    return rows


def _plain(content: bytes, storage: Storage, to: Storage) -> bytes | None:
    """Return numbers as F32, F16 or BF16, to nearest even; None if one is not finite there."""
    import numpy as np

    numbers = as_float32(content, storage)
    if to == "BF16":
        bits = numbers.view("<u4")
        high = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")
        is_finite = ((high & 0x7F80) != 0x7F80).all() and np.isfinite(numbers).all()
        return high.tobytes() if is_finite else None
    with np.errstate(over="ignore"):
        found = numbers.astype("<f2" if to == "F16" else "<f4")
    return found.tobytes() if np.isfinite(found).all() else None


@contextmanager
def _pool(threads: int | None) -> Iterator[ThreadPoolExecutor]:
    """Open a pool of threads; if the block ends early, calls that have not begun never begin."""
    pool = ThreadPoolExecutor(threads or len(os.sched_getaffinity(0)))
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _pad(file: BinaryIO, alignment: int) -> None:
    position = file.tell()
    file.write(bytes(round_up(position, alignment) - position))


def model_from_gguf(opened: TensorsOnly) -> GgufModel:
    """Return what to write for an open GGUF file, or for one in parts.

    Raises:
        CheckpointError: A matrix is already quantized.
    """
    assert isinstance(opened.text, GgufText)
    assert isinstance(opened.source, FileSource)
    path = Path(opened.path)
    return GgufModel(
        name=path.name,
        metadata=_stored_metadata(path),
        tensors=tuple(map(_tensor, opened.source.stored.values())),
        alignment=opened.text.metadata.get("general.alignment", 32),
    )


def _tensor(entry: TensorEntry) -> GgufTensor:
    is_matrix = len(entry.shape) > 1
    if is_matrix and entry.kind not in UNQUANTIZED:
        raise quantized_already(entry.file.name, "file", entry.name, entry.kind)
    row = row_bytes(entry.kind, entry.shape[-1] if is_matrix else 1)

    def read(begin: int, end: int) -> bytes:
        length = (end - begin) * row
        return entry.file.read(entry.offset + begin * row, length, f'tensor "{entry.name}"')

    return GgufTensor(entry.name, entry.shape, entry.kind, read)


def _stored_metadata(path: Path) -> dict[str, bytes]:
    """Return the metadata of a file, or of its first part, which may have no tensors.

    Keys that say that the file is part of a set are left out.
    """
    file = File(path)
    try:
        found = raw_metadata(file)
    finally:
        file.close()
    return {key: value for key, value in found.items() if not key.startswith("split.")}
