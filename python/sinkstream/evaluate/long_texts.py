"""The texts of an evaluation: read from files, turned into checked ids, and counted in bytes."""

from __future__ import annotations

import json
import lzma
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sinkstream.errors import InvalidArgument
from sinkstream.model import Model, host_of
from sinkstream.request.checks import not_in_vocabulary
from sinkstream.text.plain_text import PlainEncoder, check_characters
from sinkstream.text.tokenizers.token_bytes import token_bytes

Ids = npt.NDArray[np.int64]
IdsOrText = str | Sequence[int] | torch.Tensor | npt.NDArray[np.integer[Any]]


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
    text = _decode(_read_bytes(path, name, where), name, where)
    kinds = Path(path).suffixes
    if ".jsonl" not in kinds[-2:]:
        return [Book("standard input" if path == "-" else Path(path).name, text)]
    books = [
        _parse_line(line, number, name, where)
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


def _read_bytes(path: str, name: str, where: str) -> bytes:
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


def _parse_line(line: str, number: int, name: str, where: str) -> Book:
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


def as_ids(where: str, model: Model, ids_or_text: IdsOrText, max_tokens: int | None) -> Ids:
    """Return the ids [tokens] of text, or the given ids, checked; at most `max_tokens`.

    A string is always taken as plain text, with the beginning-of-text token if the checkpoint adds
    one. Ids are [tokens] or [1, tokens]. Errors begin with `where`.

    Raises:
        TypeError: It is neither a string nor integers.
        InvalidArgument: An id is not in the vocabulary, or there are fewer than two.
    """
    if isinstance(ids_or_text, str):
        ids = np.array(encode(where, model, ids_or_text), dtype=np.int64)
    else:
        ids = _check_ids(where, model.spec.vocab_size, ids_or_text)
    ids = ids[:max_tokens]
    if len(ids) < 2:
        raise InvalidArgument(
            f"{where}: `ids_or_text` must have at least 2 tokens, but has {len(ids)}. The first "
            "token is read but not scored.",
            param="ids_or_text",
        )
    return ids


def encode(where: str, model: Model, text: str) -> list[int]:
    """Return the ids of text at the start of a stream.

    Raises:
        InvalidArgument: The checkpoint has no tokenizer, or the text has lone surrogates.
    """
    check_characters(text, f"{where}: the text")
    return [*host_of(model).text.bos_ids, *encoder(where, model).encode(text)]


def encoder(where: str, model: Model) -> PlainEncoder:
    """Return the encoder of plain text for a model.

    Raises:
        InvalidArgument: The checkpoint has no tokenizer.
    """
    if model.tokenizer is None:
        raise InvalidArgument(
            f"{where}: the model must have a tokenizer to read text, but has none. "
            "Pass token ids instead."
        )
    return PlainEncoder(model.tokenizer)


def count_bytes(model: Model, ids: Ids) -> int | None:
    """Return the size in bytes of the text that ids stand for; None without a tokenizer."""
    if model.tokenizer is None:
        return None
    table = token_bytes(model.tokenizer, model.spec.vocab_size)
    sizes = np.array([len(piece) for piece in table.pieces], dtype=np.int64)
    sizes[sorted(table.special)] = 0
    return int(sizes[ids].sum())


def _check_ids(where: str, vocab_size: int, given: Any) -> Ids:
    if isinstance(given, bytes | bytearray) or not hasattr(given, "__len__"):
        raise TypeError(
            f"{where}: `ids_or_text` must be a string or token ids, but is of type "
            f"{type(given).__name__}."
        )
    ids = np.asarray(given)
    if ids.ndim == 2 and ids.shape[0] == 1:
        ids = ids[0]
    if ids.size == 0:
        return np.empty(0, dtype=np.int64)
    if isinstance(given, list | tuple) and all(type(each) is int for each in given):
        ids = np.array(given, dtype=object)  # some may be beyond numpy's integers
    elif ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise TypeError(
            f"{where}: `ids_or_text` must be integers [tokens] or [1, tokens], but is "
            f"{ids.dtype} {list(ids.shape)}."
        )
    wrong = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if wrong.size:
        index = int(wrong[0])
        raise not_in_vocabulary(where, "ids_or_text", index, int(ids[index]), vocab_size)
    return ids.astype(np.int64)
