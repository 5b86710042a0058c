"""Plans what a method reads and scores, before anything runs; then runs the plan.

The score of a token is its surprise: the negative log-likelihood that the model gave it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from sinkstream.cache import Cache, skip_to
from sinkstream.errors import InvalidArgument, NonFiniteLogits, warn_caller
from sinkstream.evaluate.long_texts import Ids
from sinkstream.model import Model
from sinkstream.request.checks import as_choice, as_int

Method = Literal["dense", "protocol", "recompute", "sinks", "window"]

METHODS: dict[Method, str] = {
    "sinks": "attention sinks and a window, read in chunks",
    "window": "a plain window, without sinks",
    "dense": "everything before a token",
    "recompute": "for each token, a new forward pass over the window before it",
    "protocol": "sinks and window, one token at a time, as in the original code",
}

# Half a gigabyte of float32 logits for today's largest vocabularies (256,000).
CHUNK = 512

_MAX_TOKENS = 1 << 53

Nlls = npt.NDArray[np.float32]

# Rows of logits normalized at once, so that there is no second copy of a chunk's logits.
_ROWS = 64


@dataclass(frozen=True, slots=True)
class Plan:
    """Which tokens are scored, and what each one sees."""

    method: Method
    sinks: int
    """S; 0 if the method has no sinks."""
    window: int
    """W; for "recompute", the tokens before each position that are read again for it."""
    chunk: int
    """Tokens per forward pass."""
    block: int
    """Tokens per reported mean."""
    scored: Ids
    """Indices of the scored tokens, ascending, each at least 1."""
    sample: int | None
    """Size of the random sample; None scores all tokens."""
    seed: int
    """Seed of the sample."""

    @property
    def capacity(self) -> int:
        """Return S + W, the maximum number of tokens that a query sees."""
        return self.sinks + self.window


def make_plan(
    model: Model,
    tokens: int,
    *,
    method: str,
    sinks: int | None,
    window: int | None,
    chunk: int | None,
    block: int,
    sample: int | None,
    seed: int,
) -> Plan:
    """Check and complete the arguments of `perplexity`; warn about unusual ones.

    The text has at least 2 `tokens`. The model provides sinks and window if they are None.

    Raises:
        TypeError: A value has the wrong type.
        InvalidArgument: A value is out of range, or does not belong to the method.
    """
    kind: Method = as_choice("perplexity", "method", method, tuple(METHODS))
    read = tokens - 1  # the last token is scored but never read
    sinks, window = _choose_window(model, read, kind, sinks, window)
    chunk = as_int("perplexity", "chunk", CHUNK if chunk is None else chunk, 1, 1 << 20)
    first = min(window, read) + 1 if sample is not None else 1
    return Plan(
        method=kind,
        sinks=sinks,
        window=window,
        chunk=1 if kind == "protocol" else chunk,
        block=as_int("perplexity", "block", block, 1, _MAX_TOKENS),
        scored=_choose_tokens(kind, first, tokens, sample, seed),
        sample=sample,
        seed=as_int("perplexity", "seed", seed, 0, _MAX_TOKENS),
    )


def _choose_window(
    model: Model, read: int, method: Method, sinks: int | None, window: int | None
) -> tuple[int, int]:
    capacity = model.capacity
    if method == "dense":
        _refuse(method, "window", window)
        _refuse(method, "sinks", sinks or None)
        _warn_of_growth(model, read)
        return 0, read
    if method in ("sinks", "protocol"):
        sinks = capacity.sinks if sinks is None else as_int("perplexity", "sinks", sinks, 0, read)
        usual = capacity.window
    else:
        _refuse(method, "sinks", sinks or None)
        sinks, usual = 0, capacity.tokens
    if window is not None:
        window = as_int("perplexity", "window", window, 1, _MAX_TOKENS)
        _warn_of_length(model, "sinks + window", sinks + window)
    else:
        window = usual
    if sinks + window >= read:
        raise InvalidArgument(
            f"perplexity: sinks + window must be less than the {read} tokens that are read, but "
            f"is {sinks + window}. Nothing would be evicted. Pass a longer text, a smaller "
            '`window`, or method="dense".',
            param="window",
        )
    return sinks, window


def _choose_tokens(method: Method, first: int, tokens: int, sample: int | None, seed: int) -> Ids:
    """Return all indices except the first, or a sample of those whose window slides."""
    if sample is None:
        return np.arange(1, tokens, dtype=np.int64)
    if method != "recompute":
        _refuse(method, "sample", sample)
    count = as_int("perplexity", "sample", sample, 1, tokens - first)
    drawn = np.random.default_rng(seed).choice(tokens - first, size=count, replace=False)
    return np.sort(drawn.astype(np.int64)) + first


def _refuse(method: Method, name: str, value: int | None) -> None:
    if value is not None:
        raise InvalidArgument(
            f'perplexity: `{name}` must be None with method="{method}", but is {value}.',
            param=name,
        )


def _warn_of_growth(model: Model, read: int) -> None:
    capacity = model.capacity
    if read > capacity.tokens:
        size = _with_unit(read * capacity.bytes_per_token)
        warn_caller(
            f'perplexity: method "dense" keeps the keys and values of all {read} tokens, {size}. '
            "Its memory grows with the text."
        )
    _warn_of_length(model, "the text of a dense run", read)


def _warn_of_length(model: Model, name: str, length: int) -> None:
    trained = model.spec.trained_length
    if length > trained:
        warn_caller(
            f"perplexity: {name} should not exceed the model's trained length of {trained} tokens, "
            f"but is {length}. Perplexity will rise beyond that length."
        )


def _with_unit(size: int) -> str:
    """Return a number of bytes with its unit: "1.5 MB"."""
    value, unit = size / 1000, "kB"
    for larger in ("MB", "GB", "TB"):
        if value >= 1000:
            value, unit = value / 1000, larger
    return f"{value:,.1f} {unit}"


def surprise(logits: torch.Tensor, following: torch.Tensor, first: int) -> Nlls:
    """Return -log p of the tokens that followed, in nats.

    Args:
        logits: float32 [tokens, vocab].
        following: int64 [tokens].
        first: Index of the first of these tokens in the text, for errors.
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


def run_plan(model: Model, ids: torch.Tensor, plan: Plan, done: int) -> Iterator[Nlls]:
    """Yield the surprise of the plan's tokens in order. No piece crosses a block boundary.

    The ids are int64 [1, tokens]. Of the tokens to score, the first `done` are left out.
    """
    if plan.method != "recompute":
        yield from _read_and_score(model, ids, plan, done, len(plan.scored))
        return
    if plan.sample is None:
        # Until the window slides, nothing is recomputed: one dense pass gives the same result.
        head = min(plan.window, len(plan.scored))
        yield from _read_and_score(model, ids, plan, min(done, head), head)
        done = max(done, head)
    for index in plan.scored[done:].tolist():
        yield surprise(_recompute(model, ids, plan, index), ids[0, index : index + 1], index)


def _read_and_score(
    model: Model, ids: torch.Tensor, plan: Plan, begin: int, stop: int
) -> Iterator[Nlls]:
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
