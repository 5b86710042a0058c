"""Greedy generation in a dozen lines, twice: without a KV cache and with one.

For readers of textbooks: the two functions are named as in Sebastian Raschka's books and call
`Model.forward`. For streaming, sampling and stop strings, use `Model.stream`.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

__all__ = ["ForwardModel", "generate_text_basic", "generate_text_basic_cache"]


class ForwardModel(Protocol):
    """The methods of a model that both functions need."""

    def forward(self, ids: torch.Tensor, cache: Any = None) -> torch.Tensor:
        """Return float32 logits [batch, tokens, vocab] for int64 ids [batch, tokens]."""
        ...

    def new_cache(self, batch: int = 1) -> Any:
        """Return an empty cache for `batch` rows."""
        ...


def generate_text_basic(
    model: ForwardModel, ids: torch.Tensor, max_new_tokens: int, eos_token_id: int | None = None
) -> torch.Tensor:
    """Generate greedily; recompute the entire text for every token.

    Time grows with the square of the length: step n computes logits [batch, n, vocab] and uses
    only the last row.

    Args:
        model: From `sinkstream.load`.
        ids: The prompts, int64 [batch, tokens], all of the same length, at least 1.
        max_new_tokens: Tokens to generate, at least 0.
        eos_token_id: The id that ends a row. The row then repeats it until all rows have ended.

    Returns:
        Only the new tokens, int64 [batch, at most max_new_tokens]. Once every row has
        ended, generation stops; the final column, which holds only end tokens, is not returned.

    Example:
        >>> ids = torch.tensor([model.tokenizer.encode("Once upon a time").ids])
        >>> model.tokenizer.decode(generate_text_basic(model, ids, 20)[0].tolist())
    """
    prompt_tokens = ids.shape[1]
    ended = torch.zeros(ids.shape[0], 1, dtype=torch.bool)
    for _ in range(max_new_tokens):
        logits = model.forward(ids)  # [batch, all tokens so far, vocab]
        chosen, ended = _greedy(logits, ended, eos_token_id)
        if ended.all():
            break
        ids = torch.cat([ids, chosen], dim=1)
    return ids[:, prompt_tokens:]


def generate_text_basic_cache(
    model: ForwardModel, ids: torch.Tensor, max_new_tokens: int, eos_token_id: int | None = None
) -> torch.Tensor:
    """Generate greedily with a KV cache; compute every token once.

    Time grows linearly with the length: after the prompt, every step computes logits
    [batch, 1, vocab]. The tokens equal those of `generate_text_basic` as long as nothing is
    evicted, that is, while prompt and new tokens fit into the model's sinks and window.

    Args:
        model: From `sinkstream.load`.
        ids: The prompts, int64 [batch, tokens], all of the same length, at least 1.
        max_new_tokens: Tokens to generate, at least 0.
        eos_token_id: The id that ends a row. The row then repeats it until all rows have ended.

    Returns:
        Only the new tokens, int64 [batch, at most max_new_tokens]. Once every row has
        ended, generation stops; the final column, which holds only end tokens, is not returned.

    Example:
        >>> ids = torch.tensor([model.tokenizer.encode("Once upon a time").ids])
        >>> model.tokenizer.decode(generate_text_basic_cache(model, ids, 20)[0].tolist())
    """
    prompt_tokens = ids.shape[1]
    ended = torch.zeros(ids.shape[0], 1, dtype=torch.bool)
    cache = model.new_cache(ids.shape[0])
    unread = ids  # not in the cache yet: the prompt, then one token at a time
    for _ in range(max_new_tokens):
        logits = model.forward(unread, cache)  # [batch, prompt, vocab], then [batch, 1, vocab]
        unread, ended = _greedy(logits, ended, eos_token_id)
        if ended.all():
            break
        ids = torch.cat([ids, unread], dim=1)
    return ids[:, prompt_tokens:]


def _greedy(
    logits: torch.Tensor, ended: torch.Tensor, eos_token_id: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the most probable next tokens [batch, 1], and which rows have ended [batch, 1]."""
    chosen = logits[:, -1].argmax(dim=-1, keepdim=True)
    if eos_token_id is None:
        return chosen, ended
    ended = ended | (chosen == eos_token_id)
    return chosen.masked_fill(ended, eos_token_id), ended
