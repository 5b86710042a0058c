"""Runs a plan: yields the surprise of its tokens piece by piece, from any of them on."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from sinkstream.cache import Cache
from sinkstream.evaluate.plan import CHUNK, Plan
from sinkstream.evaluate.surprise import Nlls, surprise
from sinkstream.model import Model


def run_plan(model: Model, ids: torch.Tensor, plan: Plan, done: int) -> Iterator[Nlls]:
    """Yield the surprise of the plan's tokens in order; a piece never crosses a block's border.

    Args:
        model: Computes.
        ids: int64 [1, tokens].
        plan: What is scored.
        done: Scored tokens that are known already; the pieces begin behind them.
    """
    if plan.method != "recompute":
        yield from _read(model, ids, plan, done, len(plan.scored))
        return
    if plan.sample is None:
        # Before the window slides there is nothing to compute again: one dense pass is the same.
        head = min(plan.window, len(plan.scored))
        yield from _read(model, ids, plan, min(done, head), head)
        done = max(done, head)
    for index in plan.scored[done:].tolist():
        yield surprise(_recompute(model, ids, plan, index), ids[0, index : index + 1], index)


def _read(model: Model, ids: torch.Tensor, plan: Plan, begin: int, stop: int) -> Iterator[Nlls]:
    """Read tokens [begin, stop) through one cache and score the token behind each."""
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
    """Return a cache as if it had read the first `length` tokens, the same bit for bit.

    Note: [What a cache remembers]. The keys of layer 1 depend on their own token only. A token's
    key in layer l depends on what that token saw in layer l - 1: the sinks, and W - 1 tokens before
    it. So with L layers the cached keys depend on the sinks and on the last L * (W - 1) tokens and
    on nothing before; sinks themselves see only sinks. Reading those is therefore enough, and
    because no result depends on how a text is cut into chunks, it gives the same bits.
    """
    cache = model.new_cache(batch=1, sinks=plan.sinks, window=plan.window)
    # Chunks may be large even where the plan reads token by token: they change no bit.
    begin = length - model.spec.layers * (plan.window - 1)
    if begin <= plan.sinks:
        begin = 0
    elif plan.sinks:
        feed(model, ids[:, : plan.sinks], cache, CHUNK)
    if begin:
        cache._native.jump(begin)
    feed(model, ids[:, begin:length], cache, CHUNK)
    return cache


def feed(model: Model, ids: torch.Tensor, cache: Cache, chunk: int) -> torch.Tensor | None:
    """Read ids [1, tokens] chunk by chunk; return the logits [1, vocab] of the last, if any."""
    logits = None
    for begin in range(0, ids.shape[1], chunk):
        logits = model.forward(ids[:, begin : begin + chunk], cache)[0, -1:]
    return logits


def _recompute(model: Model, ids: torch.Tensor, plan: Plan, index: int) -> torch.Tensor:
    """Return the logits [1, vocab] for a token from a fresh dense forward over the W before it."""
    cache = model.new_cache(batch=1, sinks=0, window=plan.window)
    begin = max(0, index - plan.window)
    logits = feed(model, ids[:, begin:index], cache, plan.chunk)
    assert logits is not None, "a scored token has at least one before it"
    return logits
