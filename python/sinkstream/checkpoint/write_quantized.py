"""Writes a GGUF file with another one's metadata and with its matrices rounded to block types.

Blocks come from libgguf, which is llama.cpp's own code. Its functions hold the GIL, so that each
piece of a tensor goes to one of several processes; memory holds a few pieces only.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import BinaryIO

from sinkstream.checkpoint.bounded_file import File
from sinkstream.checkpoint.checkpoint import GgufText
from sinkstream.checkpoint.describe import FILE_TYPES
from sinkstream.checkpoint.formats.gguf_header import BLOCK_TYPES, raw_metadata, round_up
from sinkstream.checkpoint.match_tensors import UNQUANTIZED
from sinkstream.checkpoint.open_tensors import open_tensors
from sinkstream.checkpoint.quantized_mixes import Decoder, Place, type_of
from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.spec import DecoderSpec
from sinkstream.checkpoint.storage import Storage, as_float32, row_bytes
from sinkstream.checkpoint.tensors import FileSource, TensorEntry
from sinkstream.errors import CheckpointError, InvalidArgument
from sinkstream.files import expand_home, replace_whole

_PIECE_NUMBERS = 1 << 19  # that a process rounds at a time: about a tenth of a second
_LARGEST = 65504.0  # of float16, which all blocks have for scales
_U32 = 4  # GGUF's number for the type
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
    processes: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Written:
    """Round the matrices of a GGUF file, and write the result to another one.

    Args:
        source: A GGUF file whose matrices have 16 or 32 bits, as `load` takes it.
        target: The file to write. It appears once it is complete.
        mix: A key of `MIXES`.
        replaces: Whether `target` may exist.
        download: As for `load`.
        processes: How many round at a time; None: one per available core.
        progress: Called with the bytes of tensors read, and those in all.

    Raises:
        InvalidArgument: `target` exists, or libgguf is not installed.
        CheckpointError: The source is not such a file, or has numbers that no block can hold.
        OSError: The target cannot be written.
    """
    path = expand_home(target)
    if not replaces and os.path.lexists(path):
        raise InvalidArgument(
            f"quantize: the file to write must not exist, but {quoted(str(target))} does. "
            "--force replaces it.",
            param="force",
        )
    if util.find_spec("libgguf") is None:
        raise InvalidArgument(
            "quantize: the package libgguf must be installed, but is not. "
            'Install it: pip install "sinkstream[quantize]"'
        )
    opened = open_tensors(source, download=download)
    try:
        if not (isinstance(opened.text, GgufText) and isinstance(opened.source, FileSource)):
            raise CheckpointError(
                f"quantize: {quoted(opened.path)} must be a GGUF file, but is a Hugging Face "
                "folder. Convert it first, with llama.cpp's convert_hf_to_gguf.py."
            )
        tensors = opened.source.stored
        types = choose_types(tensors, opened.spec, mix)
        metadata = _metadata(_stored_metadata(Path(opened.path)), mix)
        alignment = opened.text.metadata.get("general.alignment", 32)
        with replace_whole(path) as file:
            _write_header(file, metadata, tensors, types, alignment)
            with _pool(processes) as pool:
                _write_tensors(file, tensors, types, alignment, pool, progress)
            size = file.tell()
    finally:
        opened.source.close()
    before = sum(_bytes(entry, entry.kind) for entry in tensors.values())
    return Written(path, size, before, types)


def choose_types(
    tensors: Mapping[str, TensorEntry], spec: DecoderSpec, mix: str
) -> dict[str, Storage]:
    """Return the type of every tensor: of a mix for matrices, of the file for vectors.

    Raises:
        CheckpointError: A matrix is quantized already.
    """
    decoder = Decoder(
        spec.family, spec.layers, spec.heads, spec.kv_heads, "output.weight" not in tensors
    )
    return {
        name: entry.kind if len(entry.shape) == 1 else type_of(mix, _place(entry), decoder)
        for name, entry in tensors.items()
    }


def _place(entry: TensorEntry) -> Place:
    if entry.kind not in UNQUANTIZED:
        raise CheckpointError(
            f"quantize: the matrices of {entry.file.name} must have 16 or 32 bits, but "
            f"{quoted(entry.name)} is {entry.kind}. Take the original: rounding twice costs more."
        )
    words = entry.name.split(".")
    if words[0] == "blk" and len(words) > 2 and words[1].isdecimal():
        return Place(words[2], int(words[1]), entry.shape[-1])
    return Place(words[0], 0, entry.shape[-1])


def _stored_metadata(path: Path) -> dict[str, bytes]:
    """Return the metadata of a file, or of the first part of one, which may have no tensors."""
    file = File(path)
    try:
        return raw_metadata(file)
    finally:
        file.close()


def _metadata(found: dict[str, bytes], mix: str) -> dict[str, bytes]:
    """Return the metadata of a file that is no part of a set, with the name of its mix."""
    kept = {key: value for key, value in found.items() if not key.startswith("split.")}
    numbers = {
        "general.file_type": _FILE_NUMBERS[mix],
        "general.quantization_version": _QUANTIZATION_VERSION,
    }
    return kept | {key: struct.pack("<II", _U32, number) for key, number in numbers.items()}


def _write_header(
    file: BinaryIO,
    metadata: dict[str, bytes],
    tensors: Mapping[str, TensorEntry],
    types: dict[str, Storage],
    alignment: int,
) -> None:
    file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        file.write(_string(key) + value)
    offset = 0
    for name, entry in tensors.items():
        sizes = entry.shape[::-1]
        number = _BLOCK_NUMBERS[types[name]]
        file.write(_string(name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes))
        file.write(struct.pack("<IQ", number, offset))
        offset = round_up(offset + _bytes(entry, types[name]), alignment)
    _pad(file, alignment)


def _write_tensors(
    file: BinaryIO,
    tensors: Mapping[str, TensorEntry],
    types: dict[str, Storage],
    alignment: int,
    pool: ProcessPoolExecutor,
    progress: Callable[[int, int], None],
) -> None:
    total = sum(_bytes(entry, entry.kind) for entry in tensors.values())
    done = 0
    waiting: deque[tuple[TensorEntry, int, int, Future[bytes]]] = deque()

    def write_next() -> None:
        nonlocal done
        entry, end, length, result = waiting.popleft()
        try:
            file.write(result.result())
        except ValueError as error:
            raise CheckpointError(
                f"quantize: tensor {quoted(entry.name)} of {entry.file.name} {error}."
            ) from None
        if end == entry.shape[0]:
            _pad(file, alignment)
        done += length
        progress(done, total)

    most = 2 * (pool._max_workers + 1)  # type: ignore[attr-defined]
    for name, entry in tensors.items():
        for begin, end in _pieces(entry):
            cols = entry.shape[-1] if len(entry.shape) > 1 else 1
            row = row_bytes(entry.kind, cols)
            length = (end - begin) * row
            content = entry.file.read(entry.offset + begin * row, length, f'tensor "{name}"')
            with _interrupts_held():  # this may start a process
                result = pool.submit(rounded_rows, content, entry.kind, cols, types[name])
            waiting.append((entry, end, length, result))
            if len(waiting) >= most:
                write_next()
    while waiting:
        write_next()


def _pieces(entry: TensorEntry) -> Iterator[tuple[int, int]]:
    rows = entry.shape[0]
    cols = entry.shape[-1] if len(entry.shape) > 1 else 1
    step = max(1, _PIECE_NUMBERS // cols)
    for begin in range(0, rows, step):
        yield begin, min(begin + step, rows)


def rounded_rows(content: bytes, kind: Storage, cols: int, to: Storage) -> bytes:
    """Return rows of 16- or 32-bit numbers as blocks of another type. Runs in the processes.

    Raises:
        ValueError: A number is too large for every block, infinite or NaN.
    """
    if to == kind:
        return content
    import numpy as np

    numbers = as_float32(content, kind)
    if not (np.abs(numbers) <= _LARGEST).all():
        raise ValueError(
            f"must hold numbers of at most {_LARGEST:g}, but has one that is larger or NaN"
        )
    if to == "F16":
        return numbers.astype("<f2").tobytes()
    import libgguf

    return bytes(libgguf.quantize_rows(numbers.reshape(-1, cols), _BLOCK_NUMBERS[to]).tobytes())


def _pool(processes: int | None) -> ProcessPoolExecutor:
    count = processes or len(os.sched_getaffinity(0))
    # Not forked: a process with threads, such as one that holds a model, must not fork.
    return _Pool(count, multiprocessing.get_context("spawn"))


class _Pool(ProcessPoolExecutor):
    """Does not finish what waits when its block ends with an exception."""

    def __exit__(self, *args: object) -> None:
        self.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back, and from processes that start meanwhile for as long as they run.

    A terminal sends it to all of them; only the one that writes shall act on it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _bytes(entry: TensorEntry, storage: Storage) -> int:
    if len(entry.shape) == 1:
        return entry.shape[0] * row_bytes(storage, 1)
    count = 1
    for size in entry.shape[:-1]:
        count *= size
    return count * row_bytes(storage, entry.shape[-1])


def _string(text: str) -> bytes:
    encoded = text.encode("utf-8")
    return struct.pack("<Q", len(encoded)) + encoded


def _pad(file: BinaryIO, alignment: int) -> None:
    position = file.tell()
    file.write(bytes(round_up(position, alignment) - position))
