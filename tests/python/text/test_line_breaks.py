"""JSON on one line, however its reader ends lines."""

from __future__ import annotations

import json
import sys

import orjson
import pytest

from sinkstream.text.line_breaks import bytes_on_one_line, on_one_line

EVERY_CHARACTER = "".join(map(chr, (*range(0xD800), *range(0xE000, sys.maxunicode + 1))))


def test_no_character_ends_a_line() -> None:
    """The control characters below U+0020 are escaped by the writers of JSON."""
    assert len(f".{EVERY_CHARACTER}.".splitlines()) > 10
    for text in (
        on_one_line(json.dumps(EVERY_CHARACTER, ensure_ascii=False)),
        bytes_on_one_line(orjson.dumps(EVERY_CHARACTER)).decode(),
    ):
        assert text.splitlines() == [text]
        assert json.loads(text) == EVERY_CHARACTER


def test_newlines_between_values_stay() -> None:
    assert bytes_on_one_line('{"a":"\u2028"}\n\n{"b":"ü"}\n'.encode()) == (
        b'{"a":"\\u2028"}\n\n{"b":"\xc3\xbc"}\n'
    )


@pytest.mark.parametrize("text", ["", '"plain"', '"grüße 🚰 “雪” \u2027\u202a\x84\x86"'])
def test_other_text_stays_as_it_is(text: str) -> None:
    assert on_one_line(text) == text
    assert bytes_on_one_line(text.encode()) == text.encode()
