"""A reply that begins inside a character, because the prompt ends with its first bytes.

The text of a stream is that of prompt and reply without that of the prompt. If the reply completes
the character, the stream shows it; if not, the U+FFFD that stands for it is the prompt's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import sinkstream

REPLACEMENT = "\ufffd"


def byte_ids(model: sinkstream.Model, content: bytes) -> list[int]:
    """Return the tokens of single bytes."""
    assert model.tokenizer is not None
    ids: dict[bytes, int] = {}
    for token_id in range(3, 259):
        letter = model.tokenizer.id_to_token(token_id)
        assert letter is not None
        ids[sinkstream._core.byte_level_bytes([letter])[0]] = token_id
    return [ids[bytes([byte])] for byte in content]


@pytest.fixture(scope="module")
def model(tiny_folder: Callable[[str], Path]):  # type: ignore[no-untyped-def]
    """Give a tiny model whose vocabulary has every byte."""
    with sinkstream.load(tiny_folder("llama"), threads=1) as loaded:
        yield loaded


def repeated(model: sinkstream.Model, prompt: bytes, byte: bytes, count: int) -> str:
    """Return the text of a reply that consists of one byte, several times."""
    (token,) = byte_ids(model, byte)
    options = {"logit_bias": {token: 1000.0}, "max_tokens": count, "ignore_eos": True}
    streamed = "".join(model.stream(byte_ids(model, prompt), **options))  # type: ignore[arg-type]
    result = model.generate(byte_ids(model, prompt), **options)  # type: ignore[arg-type]
    assert result.token_ids == [token] * count
    assert result.text == streamed
    return streamed


def expected(prompt: bytes, reply: bytes) -> str:
    """Return the text of both without that of the prompt."""
    whole, before = (content.decode("utf-8", "replace") for content in (prompt + reply, prompt))
    if whole.startswith(before):
        return whole.removeprefix(before)
    # The reply completes the character for which U+FFFD stood.
    assert before.endswith(REPLACEMENT)
    return whole.removeprefix(before.removesuffix(REPLACEMENT))


@pytest.mark.parametrize("character", ["é", "日", "🎉"])
@pytest.mark.parametrize("known", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 3])
def test_a_reply_shows_the_character_that_it_completes(
    model: sinkstream.Model, character: str, known: int, count: int
) -> None:
    content = character.encode()
    if known >= len(content):
        pytest.skip("the character has fewer bytes")
    prompt, byte = b"ab" + content[:known], content[known : known + 1]
    shown = repeated(model, prompt, byte, count)
    assert shown == expected(prompt, byte * count)
    if known == len(content) - 1:
        assert shown == character + REPLACEMENT * (count - 1)


@pytest.mark.parametrize("character", ["é", "日", "🎉"])
def test_a_character_that_stays_incomplete_is_the_prompts(
    model: sinkstream.Model, character: str
) -> None:
    for known in range(1, len(character.encode())):
        prompt = b"ab" + character.encode()[:known]
        assert repeated(model, prompt, b"c", 3) == expected(prompt, b"ccc") == "ccc"


def test_bytes_that_no_character_has_are_still_shown_as_replacements(
    model: sinkstream.Model,
) -> None:
    assert repeated(model, b"ab", b"\xa9", 2) == REPLACEMENT * 2
    assert repeated(model, "é".encode(), b"\xa9", 2) == REPLACEMENT * 2
    assert repeated(model, b"\xe2", b"\xc3", 2) == REPLACEMENT * 2


def test_a_stop_string_may_be_the_completed_character(model: sinkstream.Model) -> None:
    (token,) = byte_ids(model, b"\xa9")
    result = model.generate(
        byte_ids(model, b"ab\xc3"), logit_bias={token: 1000.0}, stop="é", max_tokens=3
    )
    assert (result.text, result.finish_reason) == ("", "stop_string")


def test_a_session_completes_the_character_that_its_last_turn_began(
    model: sinkstream.Model,
) -> None:
    lead, following = byte_ids(model, b"\xf0\x9f")
    rest = byte_ids(model, b"\x8e\x89")
    with model.session() as session:
        options = {"max_tokens": 1, "ignore_eos": True}
        first = session.stream(byte_ids(model, b"ab"), logit_bias={lead: 1000.0}, **options)  # type: ignore[arg-type]
        assert "".join(first) == REPLACEMENT
        # What was said is in the cache; one token of the character is not in it yet.
        second = session.stream([following, *rest[:1]], logit_bias={rest[1]: 1000.0}, **options)  # type: ignore[arg-type]
        assert "".join(second) == "🎉"
