"""Log-probabilities in OpenAI's two forms: of chats, and of completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from sinkstream.streams.events import PromptToken, Token

Bytes = Callable[[int], bytes]
"""Returns the bytes of a token."""
Naming = Callable[[int, bytes], str]
"""Returns what stands for a token, which has these bytes."""


class Vocabulary(Protocol):
    """What is known of tokens."""

    def piece(self, token_id: int) -> bytes:
        """Return the bytes of a token; for a control token, those of its literal."""
        ...

    def is_control(self, token_id: int) -> bool:
        """Return whether a token is not part of any text."""
        ...


def as_text(token_id: int, raw: bytes) -> str:
    """Return a token's text."""
    return raw.decode("utf-8", "replace")


def as_text_or_bytes(token_id: int, raw: bytes) -> str:
    """Return a token's text, or its bytes in OpenAI's form if they are only a part of it."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _as_bytes(raw)


def _as_bytes(raw: bytes) -> str:
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def as_id(token_id: int, raw: bytes) -> str:
    """Return a token's id, in vLLM's form: tokens with the same text stay distinct."""
    return f"token_id:{token_id}"


def of_chat(
    tokens: Sequence[Token], vocabulary: Vocabulary, name: Naming = as_text
) -> dict[str, Any]:
    """Return `logprobs` of a chat's choice."""
    return {
        "content": [
            {
                **_entry(token.id, token.logprob, vocabulary, name),
                "top_logprobs": [_entry(*pair, vocabulary, name) for pair in token.alternatives],
            }
            for token in tokens
        ],
        "refusal": None,
    }


def of_completion(
    tokens: Sequence[Token], piece: Bytes, offset: int, name: Naming = as_text_or_bytes
) -> dict[str, Any]:
    """Return `logprobs` of a completion's choice, or of the part of it in a chunk.

    `offset` is the number of characters of the reply before these tokens.
    """
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    return {
        "tokens": [name(token.id, piece(token.id)) for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [_top(token, token.alternatives, piece, name) for token in tokens],
        "text_offset": offsets,
    }


def of_prompt(
    prompt: Sequence[PromptToken],
    count: int,
    offsets: list[int],
    piece: Bytes,
    name: Naming = as_text_or_bytes,
) -> dict[str, Any]:
    """Return `logprobs` of a completion's prompt, with `count` alternatives for each token.

    The first token has none. `offsets` are the numbers of characters of the prompt's text before
    each token.
    """
    return {
        "tokens": [name(token.id, piece(token.id)) for token in prompt],
        "token_logprobs": [token.logprob for token in prompt],
        "top_logprobs": [
            None if token.logprob is None else _top(token, token.alternatives[:count], piece, name)
            for token in prompt
        ],
        "text_offset": offsets,
    }


def of_prompt_by_id(
    prompt: Sequence[PromptToken], count: int, piece: Bytes
) -> list[dict[str, Any] | None]:
    """Return vLLM's `prompt_logprobs`: for each token except the first, objects by id.

    Each token has at most `count` alternatives.
    """
    return [None if token.logprob is None else _by_id(token, count, piece) for token in prompt]


def _by_id(token: PromptToken, count: int, piece: Bytes) -> dict[str, Any]:
    shown = dict(token.alternatives[:count])
    ranks = {other: rank for rank, (other, _) in enumerate(token.alternatives, 1)}
    if token.id not in shown:
        assert token.logprob is not None  # only the first token of a prompt has none
        shown[token.id] = token.logprob
    return {
        str(other): {
            "logprob": logprob,
            "rank": ranks.get(other),
            "decoded_token": as_text(other, piece(other)),
        }
        for other, logprob in shown.items()
    }


def _top(
    token: Token | PromptToken,
    alternatives: Sequence[tuple[int, float]],
    piece: Bytes,
    name: Naming,
) -> dict[str, float | None]:
    """Return OpenAI's form, which includes the token itself even if others are more probable.

    Each token has an entry: of several with one text, the others are named by bytes or by id.
    """
    own = name(token.id, piece(token.id))
    top: dict[str, float | None] = {}
    for other, logprob in alternatives:
        raw = piece(other)
        names = (name(other, raw), _as_bytes(raw), as_id(other, raw))
        is_own = other == token.id
        key = own if is_own else next(one for one in names if one != own and one not in top)
        top[key] = logprob
    return top | {own: token.logprob}


def _entry(token_id: int, logprob: float, vocabulary: Vocabulary, name: Naming) -> dict[str, Any]:
    """Return OpenAI's form; `bytes` are what a token adds to the text, which may be nothing."""
    raw = vocabulary.piece(token_id)
    added = [] if vocabulary.is_control(token_id) else list(raw)
    return {"token": name(token_id, raw), "logprob": logprob, "bytes": added}
