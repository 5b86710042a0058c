"""Long texts are refused before they take the memory of their tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from sinkstream.errors import InvalidArgument
from sinkstream.loading.open_checkpoint import open_checkpoint
from sinkstream.text.plain_text import plain_encoder
from sinkstream.text.tokenizers import encoding_limit
from sinkstream.text.tokenizers.encoding_limit import limiting


@pytest.fixture(scope="module")
def tokenizer(tiny_folder: Callable[[str], Path]) -> Tokenizer:
    found = open_checkpoint(tiny_folder("llama")).text.tokenizer
    assert found is not None
    return found


def test_a_text_within_the_limit_is_encoded_as_without_one(tokenizer: Tokenizer) -> None:
    text = "the sea " * 500
    ids = plain_encoder(tokenizer).encode(text)
    with limiting(len(ids) + 100):
        assert plain_encoder(tokenizer).encode(text) == ids


def test_a_text_beyond_the_limit_is_refused_after_a_slice(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding_limit, "_SLICE", 64)
    counted = []
    encode = Tokenizer.encode_batch_fast

    class Counting:
        def encode_batch_fast(self, texts: list[str], **given: Any) -> Any:
            counted.append(len(texts[0]))
            return encode(tokenizer, texts, **given)

    rule = r"at most 10 tokens, but the first 64 of 1000000 characters"
    with limiting(10), pytest.raises(InvalidArgument, match=rule) as refused:
        encoding_limit.check_length(Counting(), "7" * 1_000_000)  # type: ignore[arg-type]
    assert refused.value.param == "prompt"
    assert counted == [64]


def test_a_text_that_is_encoded_again_and_again_counts_once(tokenizer: Tokenizer) -> None:
    encoder = plain_encoder(tokenizer)
    with limiting(100):
        for _ in range(10):
            encoder.encode("7" * 60)
    encoder.encode("7" * 1000)  # not of a request


@pytest.mark.parametrize("content", ["7" * 60, [{"type": "text", "text": "7" * 60}]])
def test_messages_are_refused_before_they_are_rendered(tokenizer: Tokenizer, content: Any) -> None:
    messages = [{"role": "user", "content": content}]
    with limiting(100):
        encoding_limit.check_messages(tokenizer, messages)
        with pytest.raises(InvalidArgument, match="at most 100 tokens"):
            encoding_limit.check_messages(tokenizer, messages * 2)
    encoding_limit.check_messages(tokenizer, messages * 100)  # not of a request
