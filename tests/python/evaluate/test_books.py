"""Texts come from plain files, lines of JSON, and standard input; errors name the file."""

from __future__ import annotations

import io
import json
import lzma
from pathlib import Path

import pytest

from sinkstream.errors import InvalidArgument
from sinkstream.evaluate.long_texts import Book, pick_book, read_books

BOOKS = [
    Book("Emma", "Emma Woodhouse, handsome, clever,\u2028and rich\n"),
    Book("Middlemarch", "Miss Brooke had that kind of beauty"),
]
LINES = "".join(
    json.dumps({"title": book.title, "text": book.text}, ensure_ascii=False) + "\n"
    for book in BOOKS
)


@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_a_plain_text_is_one_book(bom: str, tmp_path: Path) -> None:
    (tmp_path / "emma.txt").write_text(bom + BOOKS[0].text, encoding="utf-8")
    assert read_books(str(tmp_path / "emma.txt")) == [Book("emma.txt", BOOKS[0].text)]


@pytest.mark.parametrize("name", ["books.jsonl", "books.jsonl.xz", "two.parts.jsonl.xz"])
def test_lines_of_json_are_books(name: str, tmp_path: Path) -> None:
    content = LINES.encode()
    (tmp_path / name).write_bytes(lzma.compress(content) if name.endswith("xz") else content)
    assert read_books(str(tmp_path / name)) == BOOKS


def test_a_text_may_be_compressed(tmp_path: Path) -> None:
    (tmp_path / "emma.txt.xz").write_bytes(lzma.compress(b"Emma"))
    assert read_books(str(tmp_path / "emma.txt.xz"))[0].text == "Emma"


def test_standard_input_is_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("größer".encode())))
    assert read_books("-") == [Book("standard input", "größer")]


def test_a_book_is_picked_by_its_title_and_else_the_first() -> None:
    assert pick_book(BOOKS, "middlemarch") is BOOKS[1]
    assert pick_book(BOOKS, None) is BOOKS[0]
    with pytest.raises(InvalidArgument, match='one of "Emma", "Middlemarch", but is "Ulysses"'):
        pick_book(BOOKS, "Ulysses")


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.txt", None, r'"a\.txt" must be a readable file, but is not: No such file'),
        ("a.txt", b"caf\xe9 au lait", r'"a\.txt" must be UTF-8, but byte 3 is not'),
        ("a.jsonl.xz", b"plain", r'"a\.jsonl\.xz" must be an xz file, but is not: .+[^.]\.$'),
        ("a.jsonl", b'{"text": "x"}\n{"text"', r'line 2 of "a\.jsonl" must be a JSON object'),
        ("a.jsonl", b'{"title": "x"}', r'line 1 of .* must be an object with a "text"'),
        ("a.jsonl", b"\n\n", "must contain at least one book, but is empty"),
    ],
)
def test_an_unreadable_file_is_named(
    name: str, content: bytes | None, sentence: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidArgument, match=f"evaluate: .*{sentence}"):
        read_books(str(tmp_path / name), where="evaluate")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="but is not: Is a directory"):
        read_books(str(tmp_path))
