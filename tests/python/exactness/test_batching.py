"""A request gives the same bits alone and in any batch; `make soak` compares more requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sinkstream
from tests.data import tiny
from tests.python.exactness.batching import (
    SETTINGS,
    compare_in_batches,
    draw_requests,
    open_tiny,
)


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_request_gives_the_same_bits_in_batches_that_change(setting: str, tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    with open_tiny(setting, tmp_path, most=32, threads=1) as model:
        requests = draw_requests(model.spec.vocab_size, 30, draw, longest=300)
        tally = compare_in_batches(model, requests, 100, draw)
    assert not tally.different
    assert tally.cancelled > 5
    assert tally.tokens_per_step > 2, "there were no batches"
    assert tally.draft_tokens - 20 > tally.accepted_tokens > 20


def test_the_real_model_gives_the_same_bits_in_batches(smollm2: Path) -> None:
    draw = np.random.default_rng(2)
    with sinkstream.load(smollm2, window=60, max_sequences=6, threads=1, speculation=15) as model:
        requests = draw_requests(model.spec.vocab_size, 6, draw, longest=90)
        tally = compare_in_batches(model, requests, 6, draw, most=6)
    assert not tally.different


class DifferentInBatches:
    """A model that rounds keys and values differently while others are running."""

    def __init__(self, alone: sinkstream.Model, in_batches: sinkstream.Model) -> None:
        self._alone = alone
        self._in_batches = in_batches

    @property
    def spec(self) -> Any:
        return self._alone.spec

    def stats(self) -> dict[str, Any]:
        one, other = self._alone.stats(), self._in_batches.stats()
        return {name: one[name] + other[name] for name in one if isinstance(one[name], int)}

    def stream(self, prompt: Any, **options: Any) -> sinkstream.Stream:
        is_alone = self.stats()["running"] + self.stats()["waiting"] == 0
        return (self._alone if is_alone else self._in_batches).stream(prompt, **options)


def test_a_model_that_rounds_differently_in_batches_is_caught(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    path = tiny.write_folder(tiny.build("llama"), tmp_path / "llama")
    options: dict[str, Any] = {"window": 60, "max_sequences": 8, "threads": 1, "dtype": "float32"}
    with (
        sinkstream.load(path, kv_dtype="float32", **options) as alone,
        sinkstream.load(path, kv_dtype="float16", **options) as in_batches,
    ):
        model = DifferentInBatches(alone, in_batches)
        requests = draw_requests(model.spec.vocab_size, 20, draw, longest=300)
        tally = compare_in_batches(model, requests, 60, draw, most=8)
    assert tally.different
