"""A reply that begins inside a character, because the prompt ends with its first bytes.

The reply's text is that of its own bytes: the bytes that continue the prompt's character are shown
as U+FFFD, never joined with text that the reply does not have.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import sinkstream


def byte_ids(model: sinkstream.Model, content: bytes) -> list[int]:
    """Return the tokens of single bytes."""
    assert model.tokenizer is not None
    ids: dict[bytes, int] = {}
    for token_id in range(3, 259):
        letter = model.tokenizer.id_to_token(token_id)
        assert letter is not None
        ids[sinkstream._core.byte_level_bytes([letter])[0]] = token_id
    return [ids[bytes([byte])] for byte in content]


@pytest.mark.parametrize("character", ["é", "日", "🎉"])
@pytest.mark.parametrize("known", [1, 2, 3])
def test_a_reply_shows_only_its_own_bytes(
    tiny_folder: Callable[[str], Path], character: str, known: int
) -> None:
    content = character.encode()
    if known >= len(content):
        pytest.skip("the character has fewer bytes")
    with sinkstream.load(tiny_folder("llama"), threads=1) as model:
        prompt = byte_ids(model, b"ab" + content[:known])
        (token,) = byte_ids(model, content[known : known + 1])
        options = {"logit_bias": {token: 1000.0}, "max_tokens": 3, "ignore_eos": True}
        streamed = "".join(model.stream(prompt, **options))  # type: ignore[arg-type]
        result = model.generate(prompt, **options)  # type: ignore[arg-type]
    own = content[known : known + 1] * 3
    assert result.token_ids == [token] * 3
    assert streamed == result.text == own.decode("utf-8", "replace") == "\ufffd" * 3
