"""Runs a plan: yields the surprise of its tokens in pieces, starting at any token."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from sinkstream.cache import Cache, skip_to
from sinkstream.evaluate.plan import CHUNK, Plan
from sinkstream.evaluate.surprise import Nlls, surprise
from sinkstream.model import Model


def run_plan(model: Model, ids: torch.Tensor, plan: Plan, done: int) -> Iterator[Nlls]:
    """Yield the surprise of the plan's tokens in order. No piece crosses a block boundary.

    Args:
        model: The model that computes.
        ids: int64 [1, tokens].
        plan: The tokens to score.
        done: Tokens that are already scored; the pieces start after them.
    """
    if plan.method != "recompute":
        yield from _read(model, ids, plan, done, len(plan.scored))
        return
    if plan.sample is None:
        # Until the window slides, nothing is recomputed: one dense pass gives the same result.
        head = min(plan.window, len(plan.scored))
        yield from _read(model, ids, plan, min(done, head), head)
        done = max(done, head)
    for index in plan.scored[done:].tolist():
        yield surprise(_recompute(model, ids, plan, index), ids[0, index : index + 1], index)


def _read(model: Model, ids: torch.Tensor, plan: Plan, begin: int, stop: int) -> Iterator[Nlls]:
    """Read tokens [begin, stop) through one cache and score the token after each."""
    if begin == stop:
        return
    cache = refill(model, ids, plan, begin)
    while begin < stop:
        border = ((begin + 1) // plan.block + 1) * plan.block - 1
        end = min(begin + plan.chunk, border, stop)
        logits = model.forward(ids[:, begin:end], cache)[0]
        yield surprise(logits, ids[0, begin + 1 : end + 1], begin + 1)
        begin = end


def refill(model: Model, ids: torch.Tensor, plan: Plan, length: int) -> Cache:
    """Return a cache bit-identical to one that has read the first `length` tokens.

    Note: [What a cache remembers]. The keys of layer 1 depend only on their own token. A token's
    key in layer l depends on what that token saw in layer l - 1: the sinks, and the W - 1 tokens
    before it. With L layers, the cached keys therefore depend only on the sinks and on the last
    L * (W - 1) tokens; sinks see only sinks. Reading these is enough. It gives the same bits,
    because results do not depend on how a text is split into chunks.
    """
    cache = model.new_cache(batch=1, sinks=plan.sinks, window=plan.window)
    # Large chunks are fine even if the plan reads single tokens: they do not change any bit.
    begin = length - model.spec.layers * (plan.window - 1)
    if begin <= plan.sinks:
        begin = 0
    elif plan.sinks:
        feed(model, ids[:, : plan.sinks], cache, CHUNK)
    if begin:
        skip_to(cache, begin)
    feed(model, ids[:, begin:length], cache, CHUNK)
    return cache


def feed(model: Model, ids: torch.Tensor, cache: Cache, chunk: int) -> torch.Tensor | None:
    """Read ids [1, tokens] in chunks; return the logits [1, vocab] of the last, if any."""
    logits = None
    for begin in range(0, ids.shape[1], chunk):
        logits = model.forward(ids[:, begin : begin + chunk], cache)[0, -1:]
    return logits


def _recompute(model: Model, ids: torch.Tensor, plan: Plan, index: int) -> torch.Tensor:
    """Return a token's logits [1, vocab] from a new dense pass over the W tokens before it."""
    cache = model.new_cache(batch=1, sinks=0, window=plan.window)
    begin = max(0, index - plan.window)
    logits = feed(model, ids[:, begin:index], cache, plan.chunk)
    assert logits is not None, "a scored token has at least one before it"
    return logits
