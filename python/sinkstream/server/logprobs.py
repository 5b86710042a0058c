"""Log-probabilities in OpenAI's two forms: of chats, and of completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sinkstream.streams.events import Token

Bytes = Callable[[int], bytes]
"""Returns the bytes of a token."""


def of_chat(tokens: Sequence[Token], piece: Bytes) -> dict[str, Any]:
    """Return `logprobs` of a chat's choice."""
    return {
        "content": [
            {
                **_entry(token.id, token.logprob, piece),
                "top_logprobs": [_entry(*pair, piece) for pair in token.alternatives],
            }
            for token in tokens
        ],
        "refusal": None,
    }


def of_completion(tokens: Sequence[Token], piece: Bytes, offset: int) -> dict[str, Any]:
    """Return `logprobs` of a completion's choice.

    Args:
        tokens: Of the choice, or of the part that a chunk has.
        piece: Returns the bytes of a token.
        offset: Characters of the reply before them.
    """
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    return {
        "tokens": [_text(piece(token.id)) for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [
            {_text(piece(other)): logprob for other, logprob in token.alternatives}
            for token in tokens
        ],
        "text_offset": offsets,
    }


def _entry(token_id: int, logprob: float, piece: Bytes) -> dict[str, Any]:
    raw = piece(token_id)
    return {"token": _text(raw), "logprob": logprob, "bytes": list(raw)}


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
