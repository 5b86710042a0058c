"""Panel files: packed weights on disk, which the next load of the same model maps.

This decides where they are kept, what each belongs to, and which are removed. The core writes and
maps them: csrc/model/panel_file.h.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkstream import _core
from sinkstream.checkpoint.checkpoint import Source, TensorsOnly, TensorSource
from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CapacityError, InvalidArgument
from sinkstream.files import (
    NewFile,
    cache_folder,
    expand_home,
    remove_if_abandoned,
    unlink_if_there,
)
from sinkstream.observe import logs
from sinkstream.observe.notebook import human_bytes

FOLDER_VARIABLE = "SINKSTREAM_CACHE"
LIMIT_VARIABLE = "SINKSTREAM_CACHE_LIMIT_GB"
LEAST_BYTES = 32_000_000
"""Of the weights of a model that is kept without being asked for: smaller ones load at once."""
_LIMIT_GB = 64.0
_SHARE = 10  # a file takes at most a tenth of the free disk, unless it is asked for
_SUFFIX, _MARK = ".panels", ".checked"
_KEY_BYTES = 16
_HEAD = struct.Struct("<16sIIqqq32s")  # csrc/model/panel_file.cc
_MAGIC = b"sinkstream panel"
_MAX_LABEL = 1 << 16
_TICK_S = 0.02  # the resolution of files' times, at the most
_MOST_SAMPLES, _SAMPLE_BYTES = 512, 4096


@dataclass(frozen=True, slots=True)
class Kept:
    """A panel file."""

    key: str
    path: Path
    bytes: int
    last_used: float
    """In seconds since the epoch."""
    name: str
    """The model's file or folder, when it was packed; "" if the file does not say."""
    source: str
    """Its path."""
    quantize: str | None


class Panels:
    """The panel file of a model that is being loaded."""

    def __init__(self, folder: Path, opened: TensorsOnly, *, is_wanted: bool) -> None:
        """Find the file's name; nothing is written yet.

        Args:
            folder: That holds panel files.
            opened: The model, with its tensors as they will be kept; its files are open.
            is_wanted: Whether to keep the file however large it is.
        """
        self._tensors, self._source, self._model = opened.tensors, opened.source, opened.path
        self._is_wanted = is_wanted
        self._folder = folder
        self._files = _files_of(opened.tensors, opened.source)
        self.key = _key_of(opened.tensors, opened.source, self._files)
        self.path = folder / f"{self.key}{_SUFFIX}"
        self.name = Path(opened.path).name

    @property
    def _mark(self) -> Path:
        return self.path.with_suffix(_MARK)

    def map(self, builder: _core.ModelBuilder, threads: int) -> bool:
        """Start taking the weights from the file; return False if there is none that fits."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(self.path, flags)
        except OSError:  # most often there is none; whatever else it is, writing one will tell
            return False
        try:
            refusal = builder.map_panels(descriptor, self.key, os.fsencode(self._mark), threads)
        finally:
            os.close(descriptor)
        if refusal:
            self._refuse(refusal)
            return False
        with suppress(OSError):
            os.utime(self._mark)  # when it was used last
        return True

    def refuse_damaged(self, weight: str) -> None:
        """Remove the file, whose bytes of a weight are not those that were written."""
        self._refuse(f"has other bytes of {quoted(weight)} than were written")

    def _refuse(self, why: str) -> None:
        logs.logger.warning("load: %s %s; the model is packed again", self.path, why)
        with suppress(OSError):
            remove(self.path)

    def keep(self, model: _core.Model) -> None:
        """Write the file of a loaded model in the background, if it may be kept."""
        new = self._begin(model.weight_bytes)
        if new is None:
            return
        try:
            error = model.keep_panels(self._target(new))
            why = os.strerror(error) if error else ""
        except CapacityError as refused:  # no thread
            why = str(refused)
        if why:
            new.abandon()
            self._leave(f"cannot be written: {why}")
        else:
            new.file.close()  # the core has its own descriptor

    def write(self, builder: _core.ModelBuilder, progress: Callable[[int], None]) -> None:
        """Write the file of a model whose weights have been read.

        Raises:
            InvalidArgument: It is larger than all files together may be.
            OSError: It cannot be written.
        """
        if (needed := builder.bytes_needed) > (most := limit_bytes()):
            raise InvalidArgument(
                f"pack: ${LIMIT_VARIABLE} must be at least {needed / 1e9:.1f} for this model, but "
                f"is {most / 1e9:g}."
            )
        new = self._create(needed)
        try:
            target = self._target(new)
            error = builder.reserve_panels(target) or builder.write_panels(target, progress)
            if error:
                raise OSError(error, os.strerror(error), str(self.path))
        except BaseException:
            new.abandon()
            raise
        new.file.close()

    def _begin(self, needed: int) -> NewFile | None:
        """Return a new file if there is room for it, and the model's own have not changed."""
        try:
            if _files_of(self._tensors, self._source) != self._files:
                return None  # they were replaced while they were read
            free = shutil.disk_usage(_existing(self._folder)).free
            if not self._is_wanted and needed * _SHARE > free:
                self._leave(
                    f"take {human_bytes(needed)}, more than a tenth of the {human_bytes(free)} "
                    "that are free; `sinkstream pack` keeps them"
                )
            elif needed > limit_bytes():
                self._leave(f"take {human_bytes(needed)}, more than ${LIMIT_VARIABLE} allows")
            elif not self._is_being_written():
                return self._create(needed)
        except OSError as error:
            self._leave(f"cannot be written: {error.strerror or error}")
        return None

    def _create(self, needed: int) -> NewFile:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        make_room(self._folder, needed)
        return NewFile(self.path, is_private=True, buffering=0)

    def _leave(self, why: str) -> None:
        logs.logger.warning(
            "load: the packed weights of %s are not kept for the next load: in %s, they %s",
            self.name,
            self._folder,
            why,
        )

    def _is_being_written(self) -> bool:
        """Return whether another process is writing the same file."""
        return any(not _is_abandoned(part) for part in self._folder.glob(f".{self.key}*.part"))

    def _target(self, new: NewFile) -> tuple[int, bytes, bytes, bytes, str, bytes]:
        rounded = {tensor.rounded_to for tensor in self._tensors} - {None}
        label = {
            "name": self.name,
            "source": self._model,
            "quantize": "/".join(sorted(map(str, rounded))) or None,
        }
        return (
            new.file.fileno(),
            os.fsencode(new.part),
            os.fsencode(self.path),
            os.fsencode(self._mark),
            self.key,
            json.dumps(label).encode()[:_MAX_LABEL],
        )


def panels_of(opened: TensorsOnly, cache: Any, device: str) -> Panels | None:
    """Return the panel file of a model, whether it exists or not; None if none is to be used.

    A GPU has a layout of its own, so there is none for it.

    Args:
        opened: The model; its files are open.
        cache: The argument of `load`.
        device: The argument of `load`.

    Raises:
        TypeError: `cache` has the wrong type.
    """
    if not isinstance(cache, bool | str | os.PathLike):
        raise TypeError(
            f"load: `cache` must be True, False or a path, but is of type {type(cache).__name__}."
        )
    folder = default_folder() if isinstance(cache, bool) else expand_home(cache)
    if cache is False or folder is None or device == "cuda":
        return None
    is_wanted = not isinstance(cache, bool)
    if not is_wanted and sum(tensor.file_bytes for tensor in opened.tensors) < LEAST_BYTES:
        return None
    return Panels(folder, opened, is_wanted=is_wanted)


def default_folder() -> Path | None:
    """Return the folder of panel files that the environment gives.

    None if the variable is empty, or if it is not set and there is no home folder.
    """
    if (chosen := os.environ.get(FOLDER_VARIABLE)) is not None:
        return expand_home(chosen) if chosen else None
    user = cache_folder()
    return None if user is None else user / "sinkstream"


def kept_files(folder: Path) -> list[Kept]:
    """List the panel files in a folder, those used last first."""
    found = []
    with suppress(OSError):
        for path in folder.glob(f"*{_SUFFIX}"):
            with suppress(OSError):
                found.append(_describe(path))
    return sorted(found, key=lambda kept: -kept.last_used)


def make_room(folder: Path, needed: int) -> None:
    """Remove what killed processes have left, and old files until `needed` bytes are in the limit.

    Raises:
        OSError: A file cannot be removed.
    """
    for part in folder.glob(".*.part"):
        with suppress(OSError):
            remove_if_abandoned(str(part))
    kept = kept_files(folder)
    held = sum(each.bytes for each in kept)
    while kept and held + needed > limit_bytes():
        oldest = kept.pop()
        remove(oldest.path)
        held -= oldest.bytes


def remove(path: Path) -> None:
    """Remove a panel file. Processes that have mapped it keep it until they end.

    Raises:
        OSError: It cannot be removed.
    """
    unlink_if_there(str(path.with_suffix(_MARK)))
    unlink_if_there(str(path))


def limit_bytes() -> int:
    """Return how many bytes panel files may have together.

    Raises:
        InvalidArgument: $SINKSTREAM_CACHE_LIMIT_GB is not a number.
    """
    given = os.environ.get(LIMIT_VARIABLE, "")
    try:
        gigabytes = float(given) if given else _LIMIT_GB
    except ValueError:
        gigabytes = -1.0
    if not 0 <= gigabytes < float("inf"):
        raise InvalidArgument(
            f"load: ${LIMIT_VARIABLE} must be a number of gigabytes from 0 on, but is "
            f"{quoted(given)}."
        )
    return int(gigabytes * 1e9)


def _describe(path: Path) -> Kept:
    """Describe a panel file; one of another version, or damaged, has no name.

    Raises:
        OSError: It has been removed, or cannot be read.
    """
    used = size = path.stat()
    with suppress(OSError):
        used = path.with_suffix(_MARK).stat()
    label: dict[str, Any] = {}
    with path.open("rb") as file, suppress(struct.error, ValueError):
        magic, _, label_bytes, *_ = _HEAD.unpack(file.read(_HEAD.size))
        if magic == _MAGIC and label_bytes <= _MAX_LABEL:
            read = json.loads(file.read(label_bytes))
            label = read if isinstance(read, dict) else {}
    return Kept(
        key=path.stem,
        path=path,
        bytes=size.st_blocks * 512,
        last_used=max(used.st_mtime, size.st_mtime),
        name=str(label.get("name", "")),
        source=str(label.get("source", "")),
        quantize=label.get("quantize"),
    )


def _is_abandoned(part: Path) -> bool:
    try:
        remove_if_abandoned(str(part))
    except FileNotFoundError:
        return True
    except OSError:  # locked
        return False
    return True


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    return next(each for each in (folder, *folder.absolute().parents) if each.exists())


# Note: [Keys]
# Bytes of panels depend on the bytes of tensors, where these are in their files, and how they are
# stored and kept. The key has all of that but the bytes: of these it has the size and the time of
# the last write of each file, and the first 4 KiB of up to 512 tensors, because copies and archives
# often have the same times: two models of one family, trained differently, then differ in nothing
# else. It has no path, so that a file can be moved.


def _key_of(
    tensors: Sequence[TensorSource], source: Source, files: Sequence[tuple[int, int, int]]
) -> str:
    digest = hashlib.blake2b(digest_size=_KEY_BYTES)

    def add(*facts: object) -> None:
        digest.update(repr(facts).encode())

    # Rounding is in floating point, which processors of another kind may do otherwise.
    add(_core.panel_version, platform.machine())
    numbers = {descriptor: number for number, (descriptor, *_) in enumerate(files)}
    add([times for _, *times in files])
    step = -(-len(tensors) // _MOST_SAMPLES)
    for index, tensor in enumerate(tensors):
        extents = source.extents(tensor)
        where = [(numbers[e.descriptor], e.offset, e.run_bytes, e.stride_bytes) for e in extents]
        add(tensor, where)  # all fields but a split matrix's order, which can be long
        if tensor.split is not None:
            add(hashlib.blake2b(tensor.split.order).digest())
        if index % step == 0:
            first = extents[0]
            size = min(_SAMPLE_BYTES, tensor.file_bytes)
            add(os.pread(first.descriptor, size, first.offset))
    return digest.hexdigest()


def _files_of(tensors: Sequence[TensorSource], source: Source) -> list[tuple[int, int, int]]:
    """Return the descriptor, size and time of the last write of each file with tensors.

    If a file was written just now, wait until another write would show.
    """
    descriptors = dict.fromkeys(
        extent.descriptor for tensor in tensors for extent in source.extents(tensor)
    )
    if any(abs(time.time() - os.fstat(each).st_mtime) < _TICK_S for each in descriptors):
        time.sleep(_TICK_S)
    found = []
    for descriptor in descriptors:
        status = os.fstat(descriptor)
        found.append((descriptor, status.st_size, status.st_mtime_ns))
    return found
