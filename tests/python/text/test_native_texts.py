"""The native loops over vocabularies equal the same loops in Python."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, pre_tokenizers

from sinkstream import _core

TEXTS = ["", "one", "zwölf", "三", "🙂", "a b  c", "x" * 300]


def encoded(texts: list[str]) -> bytes:
    return b"".join(struct.pack("<Q", len(text.encode())) + text.encode() for text in texts)


def test_texts_come_back_with_the_offset_after_them() -> None:
    content = b"xyz" + encoded(TEXTS)
    assert _core.read_texts(content, 3, len(TEXTS)) == (TEXTS, len(content))
    assert _core.read_texts(content, 3, 2) == (TEXTS[:2], 3 + len(encoded(TEXTS[:2])))
    assert _core.read_texts(content, 3, 0) == ([], 3)


def test_an_incomplete_text_is_left_for_later() -> None:
    content = encoded(TEXTS)
    ends = [len(encoded(TEXTS[:count])) for count in range(len(TEXTS) + 1)]
    for size in range(len(content)):
        texts, position = _core.read_texts(content[:size], 0, len(TEXTS))
        assert texts == TEXTS[: len(texts)]
        assert position == ends[len(texts)]
        assert ends[len(texts) + 1] > size  # no complete text is left out


@pytest.mark.parametrize("length", [6, 2**31, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_length_that_is_too_large_is_an_incomplete_text(length: int) -> None:
    content = encoded(["good"]) + struct.pack("<Q", length) + b"short"
    assert _core.read_texts(content, 0, 5) == (["good"], 12)


def test_invalid_utf8_is_left_to_the_caller() -> None:
    content = encoded(["good"]) + struct.pack("<Q", 2) + b"\xc3\x28" + encoded(["never"])
    assert _core.read_texts(content, 0, 3) == (["good"], 12)


@given(st.lists(st.text(alphabet=" ab\u0120三🙂", max_size=6)))
def test_pairs_are_cut_at_the_first_space(texts: list[str]) -> None:
    assert _core.split_pairs(texts) == [
        (left, right) for left, _, right in (text.partition(" ") for text in texts)
    ]


def test_every_byte_has_a_letter_and_comes_back_from_it() -> None:
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for text in [*map(chr, range(0x250)), "naïve café", "三 🙂\n\t\0"]:
        letters = "".join(piece for piece, _ in cut.pre_tokenize_str(text))
        assert _core.byte_level_bytes([letters]) == [text.encode()]
        assert decoders.ByteLevel().decode([letters]) == text


def test_the_alphabet_has_256_letters_and_other_characters_become_utf8() -> None:
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    for letter in map(chr, [*range(0x400), 0x4E09, 0x1F642]):
        (found,) = _core.byte_level_bytes([letter])
        if letter in alphabet:
            assert len(found) == 1
        else:
            assert found == letter.encode()
    assert _core.byte_level_bytes(["ab c", "\u0120a", ""]) == [b"ab c", b" a", b""]


def test_a_value_that_is_not_a_string_is_a_type_error() -> None:
    for call in (_core.byte_level_bytes, _core.split_pairs):
        with pytest.raises(TypeError):
            call(["text", 5])  # type: ignore[list-item]
