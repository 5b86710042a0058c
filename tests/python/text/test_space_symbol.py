"""Gemma 4's tokenizer in GGUF files: merges of characters, with "▁" for a space."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.errors import CheckpointError
from sinkstream.text.tokenizers.from_gguf import text_format_from_gguf
from sinkstream.text.tokenizers.token_bytes import decode_bytes, token_bytes
from sinkstream.text.tokenizers.vocabulary_kinds import ranked_merges
from tests.python.lanes import examples
from tests.python.text import vocabularies
from tests.python.text.encoding import encode_chat, encode_prompt
from tests.python.text.vocabularies import NORMAL

SAMPLES = [
    vocabularies.PROSE[:3000],
    "",
    " ",
    "  two  spaces ",
    "a\n\nb\n c\r\n",
    "naïve 日本 🎉 e\u0301 ▁",
]


def metadata(**changes: Any) -> dict[str, Any]:
    """Return a vocabulary of Gemma 4's kind, with some keys changed or (None) removed."""
    base = vocabularies.sentencepiece_metadata()
    tokens = list(base["tokenizer.ggml.tokens"])
    kinds = base["tokenizer.ggml.token_type"]
    ordinary = [token_id for token_id, kind in enumerate(kinds) if kind == NORMAL]
    merges = ranked_merges(tokens, ordinary, base["tokenizer.ggml.scores"])
    values = {
        "model": "gemma4",
        "tokens": [*tokens, "\n\n", "<turn|>"],
        "token_type": [*kinds, NORMAL, vocabularies.CONTROL],
        "merges": [*map(" ".join, merges), "\n \n"],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "add_bos_token": False,
    } | changes
    return {f"tokenizer.ggml.{k}": value for k, value in values.items() if value is not None}


@pytest.fixture(scope="module")
def text() -> TextFormat:
    """Give the text format."""
    return text_format_from_gguf(metadata())


@pytest.fixture(scope="module")
def oracle() -> Any:
    """Give transformers' tokenizer with the same vocabulary and merges."""
    values = metadata()
    tokens = values["tokenizer.ggml.tokens"]
    return transformers.GemmaTokenizer(
        vocab=dict(zip(tokens, range(len(tokens)), strict=True)),
        merges=[tuple(merge.split(" ")) for merge in values["tokenizer.ggml.merges"]],
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<unk>",
        mask_token=None,
    )


def tokenizer_of(text: TextFormat) -> Tokenizer:
    assert text.tokenizer is not None
    return text.tokenizer


@pytest.mark.parametrize("sample", SAMPLES)
def test_texts_have_transformers_ids(text: TextFormat, oracle: Any, sample: str) -> None:
    expected = oracle.encode(sample, add_special_tokens=False)
    assert encode_prompt(text, 2000, sample) == [1, *expected]


@examples(200)
@given(sample=st.text(st.sampled_from(" \nabet▁é日🎉.")))
def test_any_text_has_transformers_ids_and_comes_back(
    text: TextFormat, oracle: Any, sample: str
) -> None:
    ids = tokenizer_of(text).encode(sample, add_special_tokens=False).ids
    assert ids == oracle.encode(sample, add_special_tokens=False)
    table = token_bytes(tokenizer_of(text), 2000, text.vocabulary)
    assert decode_bytes(table, ids).decode() == sample.replace("▁", " ")


def test_a_text_starts_with_the_start_whatever_the_file_says() -> None:
    for flag in (None, True, False):
        assert text_format_from_gguf(metadata(add_bos_token=flag)).bos_ids == [1]
    assert text_format_from_gguf(metadata(bos_token_id=None)).bos_ids == []


def test_the_end_of_a_turn_ends_a_reply(text: TextFormat) -> None:
    end = tokenizer_of(text).token_to_id("<turn|>")
    assert text.end_token_ids == {2, end}
    chat = dataclasses.replace(text, chat_template="{{ messages[0].content }}<turn|>")
    ids = encode_chat(chat, [{"role": "user", "content": "<turn|>"}])
    assert ids.count(end) == 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"merges": None}, "`tokenizer.ggml.merges` must be an array of strings, but is missing"),
        ({"merges": ["a"]}, "entry 0 of `tokenizer.ggml.merges` must be two tokens"),
        ({"tokens": ["a", "a"], "token_type": None}, "must not repeat a token"),
    ],
)
def test_a_contradiction_is_named(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        text_format_from_gguf(metadata(**changes))
