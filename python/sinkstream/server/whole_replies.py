"""Limits the memory of replies that are sent as a whole, before they are generated."""

from __future__ import annotations

from sinkstream.request.options import StreamOptions
from sinkstream.server.errors import invalid
from sinkstream.server.requests import ChatRequest, CompletionRequest

MOST_BYTES = 128 << 20
"""The most bytes for the replies of one request."""
MOST_AT_ONCE = 4
"""Requests of that size, in progress at the same time."""
# Measured: a token's text and id, read and written; a log-probability with its bytes, likewise.
_TOKEN_BYTES = 64
_LOGPROB_BYTES = 900
_MOST_LOGPROBS = 64  # of a token; more are refused where all callers' are


def whole_bytes(
    body: ChatRequest | CompletionRequest, options: StreamOptions, replies: int, tokens_name: str
) -> int:
    """Return the memory that the replies of a request may take; 0 if they are streamed.

    Args:
        body: The request.
        options: The options of each reply.
        replies: The number of replies.
        tokens_name: The field that limits their length.

    Raises:
        ApiError: It is too much; the error names the field that multiplies it.
    """
    if body.stream:
        return 0
    has_logprobs = body.logprobs is not None and body.logprobs is not False
    logprobs = 1 + min(options.get("logprobs") or 0, _MOST_LOGPROBS) if has_logprobs else 0
    tokens = options.get("max_tokens") or 0
    total = replies * _bytes(tokens, logprobs)
    if total <= MOST_BYTES:
        return max(0, total)
    if has_logprobs:
        name = "top_logprobs" if isinstance(body, ChatRequest) and logprobs > 1 else "logprobs"
    else:
        name = "n" if replies > 1 else tokens_name
    raise invalid(
        f"body: `{name}` must allow at most {MOST_BYTES >> 20} MiB of replies without `stream`, "
        f"but {replies} replies of {tokens} tokens with {logprobs} log-probabilities each may take "
        f"{total >> 20} MiB. Set `stream`, or ask for less.",
        name,
    )


def prompt_bytes(tokens: int, alternatives: int, name: str) -> int:
    """Return the memory that the log-probabilities of prompts may take.

    Args:
        tokens: The number of tokens in all prompts of a request.
        alternatives: The number of alternatives for each token.
        name: The field that asks for them.

    Raises:
        ApiError: It is too much.
    """
    logprobs = 1 + min(alternatives, _MOST_LOGPROBS)
    total = _bytes(tokens, logprobs)
    if total > MOST_BYTES:
        raise invalid(
            f"body: `{name}` must allow at most {MOST_BYTES >> 20} MiB of log-probabilities, but "
            f"{tokens} tokens of prompts with {logprobs} each may take {total >> 20} MiB. Ask for "
            "fewer, or send a shorter prompt.",
            name,
        )
    return total


def response_bytes(options: StreamOptions) -> int:
    """Return the memory that a response may take; it is held in full even if it is streamed.

    Raises:
        ApiError: It is too much.
    """
    alternatives, tokens = options.get("logprobs"), options.get("max_tokens") or 0
    logprobs = 0 if alternatives is None else 1 + min(alternatives, _MOST_LOGPROBS)
    total = _bytes(tokens, logprobs)
    if total > MOST_BYTES:
        name = "top_logprobs" if logprobs > 1 else "max_output_tokens"
        raise invalid(
            f"body: `{name}` must allow at most {MOST_BYTES >> 20} MiB of text and "
            f"log-probabilities, but {tokens} tokens with {logprobs} log-probabilities each may "
            f"take {total >> 20} MiB. Ask for less.",
            name,
        )
    return max(0, total)


def _bytes(tokens: int, logprobs: int) -> int:
    return tokens * (_TOKEN_BYTES + logprobs * _LOGPROB_BYTES)
