"""Files of a checkpoint: read by position, never mapped, every read checked against the size.

If a mapped file shrinks, reading it kills the process; a positioned read raises an error.
"""

from __future__ import annotations

import json
import math
import os
import stat
from pathlib import Path
from typing import Any

from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError, warn_caller
from sinkstream.files import home_hint

_MAX_FAULTS = 4  # that a warning lists


class File:
    """One regular file, opened once. Thread-safe for reading.

    `descriptor` is negative once the file is closed.
    """

    def __init__(self, path: str | os.PathLike[str], where: str = "load") -> None:
        """Open `path` and note its size. Errors begin with `where`, the call that reads the file.

        Raises:
            CheckpointError: It is not a regular file, or cannot be opened.
        """
        # See Note: [Paths as strings]. `basename` finds no name before a slash.
        self.name = os.path.basename(os.fspath(path).rstrip("/"))  # noqa: PTH119
        self.where = where
        try:
            # O_NONBLOCK: opening a pipe without a writer must not hang.
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            if isinstance(error, FileNotFoundError) and Path(path).is_symlink():
                raise CheckpointError(
                    f"{where}: {quoted(self.name)} must be a regular file, but is a link to "
                    f"{quoted(str(Path(path).readlink()))}, which does not exist."
                ) from error
            reason = error.strerror if isinstance(error, OSError) else "not a file name"
            raise CheckpointError(
                f"{where}: file {quoted(self.name)} cannot be opened: {reason}.{home_hint(path)}"
            ) from error
        status = os.fstat(self.descriptor)
        self.size = status.st_size
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise CheckpointError(
                f"{where}: {quoted(self.name)} must be a regular file, but is not."
            )

    def read(self, begin: int, count: int, what: str) -> bytes:
        """Read `count` bytes, starting at `begin`; `what` they are is for the error.

        Raises:
            CheckpointError: The file ends too early, or the disk fails.
        """
        pieces: list[bytes] = []
        missing = count
        while missing > 0:
            piece = self._read_once(begin + count - missing, missing, what)
            if not piece:
                raise CheckpointError(
                    f"{self.where}: {self.name} must hold {count} bytes for {what} from byte "
                    f"{begin} on, but is {missing} bytes too short. It is incomplete, or it has "
                    "changed."
                )
            pieces.append(piece)
            missing -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _read_once(self, begin: int, count: int, what: str) -> bytes:
        if self.descriptor < 0:
            raise CheckpointError(
                f"{self.where}: {self.name} is closed; {what} can no longer be read."
            )
        try:
            return os.pread(self.descriptor, count, begin)
        except OSError as error:
            raise CheckpointError(
                f"{self.where}: {self.name} cannot be read at {what}: {error.strerror}."
            ) from error

    def close(self) -> None:
        """Close the file. May be called more than once."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def is_there(path: Path) -> bool:
    """Return whether a folder has an optional file.

    A link without a target counts as present, so reading it raises an error: the files of a hub
    snapshot are links, and ignoring one would change the model.

    Raises:
        CheckpointError: The folder may not be searched.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise CheckpointError(
            f"load: file {quoted(path.name)} cannot be opened: {error.strerror}."
        ) from error
    return True


def read_text(path: Path, max_bytes: int) -> str:
    """Read a small text file.

    Raises:
        CheckpointError: It is missing, larger than `max_bytes`, or not UTF-8.
    """
    content = _read_small(path, max_bytes)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"load: {path.name} must be UTF-8 text, but byte {error.start} is not."
        ) from error


def read_optional_json(path: Path, max_bytes: int) -> dict[str, Any]:
    """Read a small JSON file that holds one object; without the file, return no fields."""
    return read_json(path, max_bytes) if is_there(path) else {}


def read_json(path: Path, max_bytes: int) -> dict[str, Any]:
    """Read a small JSON file that holds one object.

    A key that appears twice and a number that is not finite cause a warning: most keys of a folder
    are not read. The last of equal keys counts, as for transformers.

    Raises:
        CheckpointError: It is missing, larger than `max_bytes`, or not a JSON object.
    """
    value, faults = _parse(_read_small(path, max_bytes), path.name, "load")
    if faults:
        listed = "; ".join(dict.fromkeys(faults[:_MAX_FAULTS]))
        warn_caller(f"load: {path.name} should be strictly valid JSON, but is not: {listed}.")
    return value


def _read_small(path: Path, max_bytes: int) -> bytes:
    file = File(path)
    try:
        if file.size > max_bytes:
            raise CheckpointError(
                f"load: {file.name} must have at most {max_bytes} bytes, but has {file.size}."
            )
        return file.read(0, file.size, "its text")
    finally:
        file.close()


def parse_json(content: bytes, name: str, where: str = "load") -> dict[str, Any]:
    """Parse one JSON object in UTF-8, without duplicate keys and without NaN or infinity.

    Raises:
        CheckpointError: It is anything else. The message names `where`, the call that reads it,
            and `name`, the file.
    """
    value, faults = _parse(content, name, where)
    if faults:
        raise CheckpointError(f"{where}: {name} must be valid JSON, but is not: {faults[0]}.")
    return value


def _parse(content: bytes, name: str, where: str) -> tuple[dict[str, Any], list[str]]:
    """Parse as Python's json does, where the last of equal keys counts; return the faults, too."""
    faults: list[str] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for index, key in enumerate(keys) if key in keys[:index])
            faults.append(f"the key {quoted(twice)} appears twice")
        return found

    def number(text: str) -> float:
        value = float(text)
        if not math.isfinite(value):
            faults.append(f"{text[:40]} is not a JSON number")
        return value

    try:
        value = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=collect,
            parse_constant=number,
            parse_float=number,
        )
    except RecursionError:
        raise CheckpointError(f"{where}: {name} must be JSON, but is nested too deeply.") from None
    except ValueError as error:
        raise CheckpointError(
            f"{where}: {name} must be valid JSON, but is not: {error}."
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: {name} must be a JSON object, but is {quoted(value)}.")
    return value, faults
