"""Plans what a method reads and scores, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sinkstream.errors import InvalidArgument, warn_caller
from sinkstream.evaluate.tokens import Ids
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

    Args:
        model: Provides sinks and window if they are None.
        tokens: Tokens of the text, at least 2.
        method: As for `perplexity`.
        sinks: As for `perplexity`.
        window: As for `perplexity`.
        chunk: As for `perplexity`.
        block: As for `perplexity`.
        sample: As for `perplexity`.
        seed: As for `perplexity`.

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
