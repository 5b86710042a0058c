"""Appends results to a file that a second run can continue."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from sinkstream.checkpoint.quoting import quoted
from sinkstream.cli.standard_streams import json_line
from sinkstream.errors import InvalidArgument
from sinkstream.files import replace_whole
from sinkstream.text.line_breaks import on_one_line

_PIECE = 1 << 20
# How every line begins: it tells a line that a crash has cut from a text of another kind.
_START = b'{"line": '


class Output(Protocol):
    """Where results go."""

    @property
    def done(self) -> int:
        """Return how many results existed at the start."""

    def finished(self) -> Iterator[dict[str, Any]]:
        """Yield the results that existed at the start."""

    def replacing(self) -> AbstractContextManager[Output]:
        """Return an output for the same number of results, which replace these at the end."""

    def write(self, results: Sequence[dict[str, Any]]) -> None:
        """Append results.

        Raises:
            OSError: The disk is full.
        """

    def close(self) -> None:
        """End."""


class StandardOutput:
    """A pipe: nothing was there before."""

    done = 0

    def finished(self) -> Iterator[dict[str, Any]]:
        """See `Output`."""
        return iter(())

    def replacing(self) -> AbstractContextManager[Output]:
        """See `Output`."""
        return nullcontext(self)

    def write(self, results: Sequence[dict[str, Any]]) -> None:
        """See `Output`."""
        sys.stdout.write("".join(map(json_line, results)))
        sys.stdout.flush()

    def close(self) -> None:
        """See `Output`."""


class ResultFile:
    """A file of complete lines, which are on disk when `write` returns."""

    def __init__(self, path: str) -> None:
        """Open or create a file; remove what a crash has left of its last line.

        Raises:
            OSError: It cannot be opened.
            InvalidArgument: It holds something else, or another run is writing to it.
        """
        self._path = path
        self._file = _open(path)
        try:
            self.is_regular = stat.S_ISREG(os.fstat(self._file).st_mode)
            self.done = self._continue() if self.is_regular else 0
        except BaseException:
            self.close()
            raise

    def finished(self) -> Iterator[dict[str, Any]]:
        """See `Output`."""
        if self.done:
            with open(os.dup(self._file), "rb") as file:  # noqa: PTH123  # a descriptor
                file.seek(0)
                for line in itertools.islice(file, self.done):
                    yield self._parsed(line)

    @contextmanager
    def replacing(self) -> Iterator[Output]:
        """See `Output`."""
        with replace_whole(Path(self._path).absolute()) as file:
            yield Replacement(file)
        old, self._file = self._file, _open(self._path)
        os.close(old)
        self._claim()

    def write(self, results: Sequence[dict[str, Any]]) -> None:
        """See `Output`."""
        rest = b"".join(map(_encoded, results))
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
            if self.is_regular:
                os.fsync(self._file)
        except OSError as error:
            raise type(error)(error.errno, error.strerror, self._path) from None

    def close(self) -> None:
        """See `Output`."""
        os.close(self._file)

    def _continue(self) -> int:
        self._claim()
        lines, begin, end = self._last_line()
        if lines:
            self._parsed(os.pread(self._file, end - begin, begin))
        torn = os.pread(self._file, len(_START), end)
        if not _START.startswith(torn):
            raise self._refusal()
        os.ftruncate(self._file, end)
        return lines

    def _claim(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidArgument(
                "batch: OUT must not be in use, but another run is writing to "
                f"{quoted(self._path)}."
            ) from None

    def _last_line(self) -> tuple[int, int, int]:
        """Return the number of complete lines, and where the last of them begins and ends."""
        lines = begin = end = offset = 0
        while piece := os.pread(self._file, _PIECE, offset):
            at = piece.find(b"\n")
            while at >= 0:
                lines, begin, end = lines + 1, end, offset + at + 1
                at = piece.find(b"\n", at + 1)
            offset += len(piece)
        return lines, begin, end

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            result = json.loads(line)
        except ValueError:
            result = None
        if not isinstance(result, dict) or type(result.get("line")) is not int:
            raise self._refusal()
        return result

    def _refusal(self) -> InvalidArgument:
        return InvalidArgument(
            f"batch: OUT must hold results of this command, or not exist, but {quoted(self._path)} "
            "holds something else."
        )


class Replacement:
    """A new file, which gets its name when all results are written."""

    done = 0

    def __init__(self, file: BinaryIO) -> None:
        """Write to an open file."""
        self._file = file

    def finished(self) -> Iterator[dict[str, Any]]:
        """See `Output`."""
        return iter(())

    def replacing(self) -> AbstractContextManager[Output]:
        """See `Output`."""
        return nullcontext(self)

    def write(self, results: Sequence[dict[str, Any]]) -> None:
        """See `Output`."""
        self._file.writelines(map(_encoded, results))

    def close(self) -> None:
        """See `Output`."""


def _open(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)


def _encoded(result: dict[str, Any]) -> bytes:
    try:
        return (on_one_line(json.dumps(result, ensure_ascii=False)) + "\n").encode("utf-8")
    except UnicodeEncodeError:  # an id with half of a surrogate pair
        return (json.dumps(result) + "\n").encode("utf-8")
