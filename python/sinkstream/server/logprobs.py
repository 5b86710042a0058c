"""Log-probabilities in OpenAI's two forms: of chats, and of completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sinkstream.streams.events import Token

Bytes = Callable[[int], bytes]
"""Returns the bytes of a token."""
Naming = Callable[[int, bytes], str]
"""Returns what stands for a token, which has these bytes."""


def as_text(token_id: int, raw: bytes) -> str:
    """Return a token's text."""
    return raw.decode("utf-8", "replace")


def as_id(token_id: int, raw: bytes) -> str:
    """Return a token's id, in vLLM's form: tokens of the same text stay different."""
    return f"token_id:{token_id}"


def of_chat(tokens: Sequence[Token], piece: Bytes, name: Naming = as_text) -> dict[str, Any]:
    """Return `logprobs` of a chat's choice."""
    return {
        "content": [
            {
                **_entry(token.id, token.logprob, piece, name),
                "top_logprobs": [_entry(*pair, piece, name) for pair in token.alternatives],
            }
            for token in tokens
        ],
        "refusal": None,
    }


def of_completion(
    tokens: Sequence[Token], piece: Bytes, offset: int, name: Naming = as_text
) -> dict[str, Any]:
    """Return `logprobs` of a completion's choice.

    Args:
        tokens: Of the choice, or of the part that a chunk has.
        piece: Returns the bytes of a token.
        offset: Characters of the reply before them.
        name: Returns what stands for a token.
    """
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    return {
        "tokens": [name(token.id, piece(token.id)) for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        # OpenAI's: the token itself is among them, also if others are more probable.
        "top_logprobs": [
            {name(other, piece(other)): logprob for other, logprob in token.alternatives}
            | {name(token.id, piece(token.id)): token.logprob}
            for token in tokens
        ],
        "text_offset": offsets,
    }


def _entry(token_id: int, logprob: float, piece: Bytes, name: Naming) -> dict[str, Any]:
    raw = piece(token_id)
    return {"token": name(token_id, raw), "logprob": logprob, "bytes": list(raw)}
