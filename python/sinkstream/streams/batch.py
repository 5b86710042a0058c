"""The unit of delivery of a stream: `_core.TokenStream.take` returns it."""

from __future__ import annotations

from typing import NamedTuple


class Batch(NamedTuple):
    """The tokens since the last batch, with their text; csrc/bindings/stream.cc builds it.

    Every list except `marks` and `prompt` has one entry per token.
    """

    text: str
    """The text of all tokens; characters beyond their `lengths` belong to no token."""
    ids: list[int]
    logprobs: list[float]
    lengths: list[int]
    """Characters of `text` that each token completes."""
    alternatives: list[tuple[tuple[int, float], ...]]
    """(id, logprob) of the most probable tokens; empty if the request has no `logprobs`."""
    marks: list[tuple[str, int, int]]
    """(kind, tokens of the batch before it, count) of other events, in order."""
    prompt: tuple[tuple[int, float | None, tuple[tuple[int, float], ...]], ...] = ()
    """(id, logprob, alternatives) of tokens of the prompt, if the request has `prompt_logprobs`;
    before all other tokens. The first of a prompt has no logprob."""
