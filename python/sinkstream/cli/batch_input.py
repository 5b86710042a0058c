"""Reads the lines of a batch, in bounded memory and without blocking an event loop."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

MAX_LINE_BYTES = 64 << 20
"""A longer line is an error: only this much is ever kept of one."""

_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class InputLine:
    """A line that is not blank."""

    number: int
    """Counted from 1, including blank lines."""
    content: bytes
    is_too_long: bool = False
    """Whether `content` is only the beginning."""

    @property
    def digest(self) -> str:
        """Return 16 hexadecimal digits that identify the content of the line."""
        return hashlib.sha256(self.content.strip()).hexdigest()[:16]


async def read_lines(descriptor: int) -> AsyncIterator[InputLine]:
    """Yield the lines of a file or pipe; other tasks run while a pipe has none.

    Raises:
        OSError: It cannot be read.
    """
    number, kept, is_too_long = 1, b"", False
    while piece := await _read(descriptor):
        *ended, rest = piece.split(b"\n")
        for end in ended:
            kept, is_too_long = _add(kept, end, is_too_long)
            if kept.strip():
                yield InputLine(number, kept, is_too_long)
            number, kept, is_too_long = number + 1, b"", False
        kept, is_too_long = _add(kept, rest, is_too_long)
    if kept.strip():
        yield InputLine(number, kept, is_too_long)


def _add(kept: bytes, more: bytes, is_too_long: bool) -> tuple[bytes, bool]:
    room = MAX_LINE_BYTES - len(kept)
    return kept + more[:room], is_too_long or len(more) > room


async def _read(descriptor: int) -> bytes:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    try:
        loop.add_reader(descriptor, _set, ready)
    except PermissionError:  # a file is always ready
        return os.read(descriptor, _PIECE)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, _PIECE)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def count_lines(path: str) -> int:
    """Return the number of lines of a file that are not blank, give or take long ones."""
    with open(path, "rb") as file:  # noqa: PTH123  # the path may be /dev/stdin
        return sum(bool(line.strip()) for line in iter(lambda: file.readline(MAX_LINE_BYTES), b""))
