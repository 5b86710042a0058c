"""Names of tokens in the log-probabilities of completions."""

from __future__ import annotations

import pytest

pytest.importorskip("orjson", reason="needs the extra `serve`")

from sinkstream.server.logprobs import as_id, of_completion
from sinkstream.streams.events import Token

# Parts of characters, and two tokens with one text.
PIECES = [b"\xf0\x9f", b"\xf0", b"a", b"a", b"\xe2\x82\xac", b"a"]


def token(token_id: int, *alternatives: int) -> Token:
    pairs = tuple((other, -float(other)) for other in alternatives)
    return Token(id=token_id, text="", logprob=-9.0, alternatives=pairs)


def test_each_alternative_has_an_entry() -> None:
    scored = of_completion([token(0, 0, 1, 4)], PIECES.__getitem__, 0)
    assert scored["tokens"] == [r"bytes:\xf0\x9f"]
    assert list(scored["top_logprobs"][0]) == [r"bytes:\xf0\x9f", r"bytes:\xf0", "€"]


def test_of_several_tokens_with_one_text_the_others_are_named_otherwise() -> None:
    (top,) = of_completion([token(3, 2, 3, 5)], PIECES.__getitem__, 0)["top_logprobs"]
    assert top == {r"bytes:\x61": -2.0, "a": -9.0, "token_id:5": -5.0}


def test_by_id_every_token_has_its_own_name_anyway() -> None:
    (top,) = of_completion([token(3, 2, 3, 5)], PIECES.__getitem__, 0, as_id)["top_logprobs"]
    assert list(top) == ["token_id:2", "token_id:3", "token_id:5"]
