"""Reads texts to evaluate: a plain text file, or books as lines of JSON."""

from __future__ import annotations

import json
import lzma
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkstream.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Book:
    """A text and its title."""

    title: str
    text: str


def read_books(path: str, *, where: str = "read_books") -> list[Book]:
    """Read a UTF-8 text file as one book, or a file of several books.

    Args:
        path: A text file; a .jsonl or .jsonl.xz file with one `{"title": …, "text": …}` per line;
            or "-" for standard input.
        where: The calling function, named in errors.

    Raises:
        InvalidArgument: The file cannot be read, is not UTF-8, or has malformed lines.
    """
    name = "standard input" if path == "-" else f'"{Path(path).name}"'
    text = _decode(_read(path, name, where), name, where)
    kinds = Path(path).suffixes
    if ".jsonl" not in kinds[-2:]:
        return [Book("standard input" if path == "-" else Path(path).name, text)]
    books = [
        _parse(line, number, name, where)
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip()
    ]
    if not books:
        raise InvalidArgument(f"{where}: {name} must contain at least one book, but is empty.")
    return books


def pick_book(books: list[Book], title: str | None, *, where: str = "pick_book") -> Book:
    """Return the book with this title, ignoring case, or the first book.

    Raises:
        InvalidArgument: No book has this title; the message lists the titles.
    """
    if title is None:
        return books[0]
    for book in books:
        if book.title.casefold() == title.casefold():
            return book
    known = ", ".join(sorted(f'"{book.title}"' for book in books))
    raise InvalidArgument(
        f'{where}: `title` must be one of {known}, but is "{title}".', param="title"
    )


def _read(path: str, name: str, where: str) -> bytes:
    try:
        if path == "-":
            if sys.stdin is None:
                raise ValueError("it is closed")
            return sys.stdin.buffer.read()
        content = Path(path).read_bytes()
        return lzma.decompress(content) if path.endswith(".xz") else content
    except lzma.LZMAError as error:
        raise InvalidArgument(f"{where}: {name} must be an xz file, but is not: {error}.") from None
    except (OSError, ValueError) as error:  # ValueError: also a path with a NUL byte
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidArgument(
            f"{where}: {name} must be a readable file, but is not: {reason}."
        ) from None


def _decode(content: bytes, name: str, where: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"{where}: {name} must be UTF-8, but byte {error.start} is not. Convert it first."
        ) from None


def _parse(line: str, number: int, name: str, where: str) -> Book:
    try:
        entry: Any = json.loads(line)
    except ValueError as error:
        raise InvalidArgument(
            f"{where}: line {number} of {name} must be a JSON object, but is not: {error}."
        ) from None
    if not isinstance(entry, dict) or not isinstance(entry.get("text"), str):
        raise InvalidArgument(
            f'{where}: line {number} of {name} must be an object with a "text", but has none.'
        )
    return Book(str(entry.get("title", f"book {number}")), entry["text"])
