"""Prompts, options and comparisons shared by the GPU tests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import sinkstream
from tests.gpu.sizes import SIZES

if TYPE_CHECKING:
    import torch

# The table of tests/cpp/kernels/tolerance.h, relative to the scale of the logits.
TOLERANCE = 4e-2

SAMPLED = {"max_tokens": SIZES.reply, "temperature": 0.8, "top_p": 0.95, "ignore_eos": True}


def prompt(tokens: int, number: int = 0) -> list[int]:
    """Return ids that every tiny model has; prompts with different numbers share no prefix."""
    return [3 + (41 * number + 7 * i) % 113 for i in range(tokens)]


def bits(result: sinkstream.Result) -> tuple[Any, ...]:
    """Return what must match bit for bit; a logprob depends on a whole row of logits."""
    return result.token_ids, result.logprobs


def error_of(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return the largest difference relative to the largest value; infinite for NaN."""
    worst = (ours - theirs).abs().max() / theirs.abs().max()
    return float(worst) if bool(worst.isfinite()) else float("inf")


def wait_until_idle(model: sinkstream.Model, limit_s: float = 60) -> dict[str, Any]:
    """Wait until nothing runs or waits, and return the counters."""
    end = time.monotonic() + limit_s
    while (stats := model.stats())["running"] or stats["waiting"]:
        assert time.monotonic() < end, f"the engine is not idle after {limit_s:g} s: {stats}"
        time.sleep(0.001)
    return stats
