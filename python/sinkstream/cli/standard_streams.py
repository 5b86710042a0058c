"""Standard streams that may be closed or full, or whose encoding may lack characters.

The commands write as usual. Output that cannot be written is an `OutputError`, and `main` turns it
into one sentence; notes on standard error that cannot be written are dropped.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from sinkstream.text.line_breaks import on_one_line


class OutputError(OSError):
    """Standard output cannot be written, for a reason other than `BrokenPipeError`."""

    def __str__(self) -> str:
        return f"cannot write to standard output: {self.strerror}."


class Output:
    """Standard output. A character that its encoding lacks becomes a question mark."""

    def __init__(self, stream: TextIO) -> None:
        """Write to `stream`."""
        self._stream = stream
        self.has_lost_characters = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def is_unicode(self) -> bool:
        """Whether the encoding has every character."""
        return codecs.lookup(self._stream.encoding or "utf-8").name.startswith("utf")

    def write(self, text: str) -> int:
        """Append text.

        Raises:
            BrokenPipeError: The reader has ended.
            OutputError: The text cannot be written.
        """
        try:
            return self._stream.write(text)
        except UnicodeEncodeError:
            encoding = self._stream.encoding
            self.has_lost_characters = True
            return self._stream.write(text.encode(encoding, "replace").decode(encoding))
        except OSError as error:
            raise _with_reason(error) from None

    def writelines(self, lines: Iterable[str]) -> None:
        """Append strings; raises what `write` raises."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Pass on what is buffered; raises what `write` raises."""
        try:
            self._stream.flush()
        except OSError as error:
            raise _with_reason(error) from None


class Notes:
    """Standard error, which may be missing: no command ends because a note cannot be written."""

    def __init__(self, stream: TextIO) -> None:
        """Write to `stream`."""
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Append text if possible."""
        try:
            self._stream.write(text)
        except OSError:
            discard(self._stream)
        return len(text)

    def flush(self) -> None:
        """Pass on what is buffered, if possible."""
        try:
            self._stream.flush()
        except OSError:
            discard(self._stream)


@contextmanager
def standard_streams() -> Iterator[None]:
    """Replace `sys.stdout` and `sys.stderr` within the block with an `Output` and `Notes`."""
    _open_closed_ones()
    former = sys.stdout, sys.stderr
    _prefer_utf8(former[0])
    output = Output(former[0])
    sys.stdout, sys.stderr = cast("TextIO", output), cast("TextIO", Notes(former[1]))
    try:
        yield
    finally:
        if output.has_lost_characters and not output.is_unicode:
            print(
                'sinkstream: some characters are written as "?", because the encoding of standard '
                f"output, {output.encoding}, lacks them. PYTHONIOENCODING=utf-8 keeps them.",
                file=sys.stderr,
            )
        sys.stdout, sys.stderr = former


def json_line(value: object) -> str:
    """Return a JSON object on one line; characters that standard output may lack are escaped."""
    is_unicode = getattr(sys.stdout, "is_unicode", False)
    return on_one_line(json.dumps(value, ensure_ascii=not is_unicode)) + "\n"


def discard(stream: TextIO) -> None:
    """Discard what is written to a stream that has failed.

    Otherwise Python would try again at exit, and report the failure.
    """
    number = os.open(os.devnull, os.O_WRONLY)
    os.dup2(number, stream.fileno())
    os.close(number)


def _with_reason(error: OSError) -> OSError:
    if isinstance(error, BrokenPipeError):
        return error
    return OutputError(error.errno, error.strerror or str(error))


def _prefer_utf8(output: TextIO) -> None:
    """Write UTF-8 to pipes and files in any locale, unless the user chose another encoding."""
    chosen = os.environ.get("PYTHONIOENCODING", "").partition(":")[0]
    if isinstance(output, io.TextIOWrapper) and not output.isatty() and not chosen:
        output.reconfigure(encoding="utf-8", errors="strict")


def _open_closed_ones() -> None:
    """Open /dev/null as descriptors 0 to 2 if they are free, so that no other file gets them.

    Reading from and writing to a stream that was closed still fails.
    """
    for number, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, mode)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
