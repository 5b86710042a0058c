"""Shared by the tests of exactness: seeded streams, their definition, and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch

import sinkstream
from tests.data import tiny
from tests.reference.decoder import Decoder
from tests.reference.hugging_face import from_hugging_face
from tests.reference.rope import Array

LoadOnce = Callable[..., sinkstream.Model]
"""The fixture `loaded`: takes the name of a tiny model and options of `load`."""

# Relative to the largest logit of a row: float32 rounding. A key at a wrong position costs 1e-1.
TOLERANCE = 1e-5


@cache
def stream_ids(name: str, tokens: int) -> torch.Tensor:
    """Draw ids [1, tokens]; the same ones for the same arguments."""
    vocab = tiny.CONFIGS[name][0]["vocab_size"]
    return torch.from_numpy(np.random.default_rng(tokens).integers(0, vocab, (1, tokens)))


@cache
def reference(name: str) -> Decoder:
    """Return the literal decoder of a tiny model."""
    drawn = tiny.build(name)
    return from_hugging_face(drawn.config, drawn.weights)


def expected(name: str, ids: torch.Tensor, sinks: int, window: int) -> Array:
    """Return the logits that the definition gives for ids [1, tokens]: [tokens, vocab]."""
    return reference(name).forward(ids[0].tolist(), sinks, window)


def forward_in_chunks(
    model: sinkstream.Model,
    ids: torch.Tensor,
    chunks: Sequence[int],
    sinks: int | None = None,
    window: int | None = None,
) -> torch.Tensor:
    """Feed ids [batch, tokens] to one fresh cache, piece after piece."""
    cache = model.new_cache(len(ids), sinks=sinks, window=window)
    pieces = torch.split(ids, list(chunks), dim=1)
    return torch.cat([model.forward(piece, cache) for piece in pieces], dim=1)


def even_chunks(tokens: int, size: int) -> list[int]:
    """Cut a number of tokens into pieces of `size`; the last one may be shorter."""
    return [min(size, tokens - begin) for begin in range(0, tokens, size)]


def errors(found: torch.Tensor, wanted: Array) -> Array:
    """Return each row's largest error, relative to its largest logit; NaN counts as infinite."""
    difference = np.abs(found.double().numpy() - wanted).max(axis=-1)
    relative = difference / np.abs(wanted).max(axis=-1)
    return np.where(np.isnan(relative), np.inf, relative)


def assert_equals(found: torch.Tensor, wanted: Array, tolerance: float = TOLERANCE) -> None:
    """Check that every row is right, and name the first that is wrong."""
    error = errors(found, wanted)
    wrong = np.flatnonzero(error > tolerance)
    assert wrong.size == 0, f"first wrong at index {wrong[0]}, by {error[wrong[0]]}"
