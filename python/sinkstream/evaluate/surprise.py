"""Scores predictions: the negative log-likelihood of the token that followed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from sinkstream.errors import NonFiniteLogits

Nlls = npt.NDArray[np.float32]

# Rows of logits normalized at once, so that there is no second copy of a chunk's logits.
_ROWS = 64


def surprise(logits: torch.Tensor, following: torch.Tensor, first: int) -> Nlls:
    """Return -log p of the tokens that followed, in nats.

    Args:
        logits: float32 [tokens, vocab].
        following: int64 [tokens], the tokens that followed.
        first: Index of the first of these tokens in the text, for errors.

    Raises:
        NonFiniteLogits: A logit is NaN or infinite.
    """
    rows = [
        torch.log_softmax(logits[i : i + _ROWS], dim=-1)
        .gather(1, following[i : i + _ROWS, None])
        .squeeze(1)
        for i in range(0, len(following), _ROWS)
    ]
    found: Nlls = -torch.cat(rows).numpy()
    wrong = np.flatnonzero(~np.isfinite(found))
    if wrong.size:
        raise NonFiniteLogits(
            f"perplexity: logits must be finite, but those for token {first + int(wrong[0])} are "
            "not. The weights are damaged, or a kernel is wrong."
        )
    return found
