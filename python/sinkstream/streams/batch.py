"""What a stream hands over at once: `_core.TokenStream.take` returns it."""

from __future__ import annotations

from typing import NamedTuple


class Batch(NamedTuple):
    """Tokens that a reader has not taken yet, with their text; csrc/bindings/stream.cc makes it.

    All lists but `marks` have an entry for each token.
    """

    text: str
    """The text of all tokens; what exceeds their `lengths` belongs to no token."""
    ids: list[int]
    logprobs: list[float]
    lengths: list[int]
    """Characters of `text` that each token completes."""
    alternatives: list[tuple[tuple[int, float], ...]]
    """(id, logprob) of the most probable tokens; empty where the request has no `logprobs`."""
    marks: list[tuple[str, int, int]]
    """(kind, tokens of the batch before it, count) of other events, in order."""
