"""The native loops over vocabularies do what the same lines of Python do."""

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


def test_texts_come_back_with_the_place_behind_them() -> None:
    content = b"xyz" + encoded(TEXTS)
    assert _core.read_texts(content, 3, len(TEXTS)) == (TEXTS, len(content))
    assert _core.read_texts(content, 3, 2) == (TEXTS[:2], 3 + len(encoded(TEXTS[:2])))
    assert _core.read_texts(content, 3, 0) == ([], 3)


def test_a_text_that_is_not_there_whole_is_left_for_later() -> None:
    content = encoded(TEXTS)
    ends = [len(encoded(TEXTS[:count])) for count in range(len(TEXTS) + 1)]
    for size in range(len(content)):
        texts, position = _core.read_texts(content[:size], 0, len(TEXTS))
        assert texts == TEXTS[: len(texts)]
        assert position == ends[len(texts)]
        assert ends[len(texts) + 1] > size  # not one less than there are


@pytest.mark.parametrize("length", [6, 2**31, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_length_that_lies_is_a_text_that_is_not_there(length: int) -> None:
    content = encoded(["good"]) + struct.pack("<Q", length) + b"short"
    assert _core.read_texts(content, 0, 5) == (["good"], 12)


def test_what_is_no_utf8_is_left_to_whoever_can_say_so() -> None:
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


def test_the_alphabet_is_256_letters_and_others_are_written_as_they_are() -> None:
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    for letter in map(chr, [*range(0x400), 0x4E09, 0x1F642]):
        (found,) = _core.byte_level_bytes([letter])
        if letter in alphabet:
            assert len(found) == 1
        else:
            assert found == letter.encode()
    assert _core.byte_level_bytes(["ab c", "\u0120a", ""]) == [b"ab c", b" a", b""]


def test_what_is_no_text_is_a_type_error() -> None:
    for call in (_core.byte_level_bytes, _core.split_pairs):
        with pytest.raises(TypeError):
            call(["text", 5])  # type: ignore[list-item]
