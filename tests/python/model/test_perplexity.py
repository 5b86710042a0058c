"""The cost of the fast path in quality: perplexity on a book, compared with float32."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import sinkstream


def perplexity(model: sinkstream.Model, ids: torch.Tensor) -> float:
    """Stream `ids` [1, tokens] through one cache; return exp of the mean surprise."""
    cache = model.new_cache()
    surprise = 0.0
    for begin in range(0, ids.shape[1] - 1, 500):
        read = ids[:, begin : min(begin + 500, ids.shape[1] - 1)]
        logits = model.forward(read, cache)[0].double()
        following = ids[0, begin + 1 : begin + 1 + read.shape[1]]
        surprise += float(torch.nn.functional.cross_entropy(logits, following, reduction="sum"))
    return math.exp(surprise / (ids.shape[1] - 1))


@pytest.mark.parametrize(
    ("tokens", "window"),
    [
        (640, 60),
        pytest.param(2000, 1020, marks=pytest.mark.full),
        pytest.param(8000, 1020, marks=pytest.mark.slow),
    ],
)
def test_fast_path_is_as_good_as_float32(
    tokens: int, window: int, smollm2: Path, prose: str, threads: int
) -> None:
    def measure(**options: Any) -> float:
        with sinkstream.load(smollm2, sinks=4, window=window, threads=threads, **options) as model:
            ids = torch.tensor([model.tokenizer.encode(prose).ids[:tokens]])
            assert ids.shape[1] == tokens
            return perplexity(model, ids)

    exact = measure(dtype="float32", kv_dtype="float32")
    assert 5 < exact < 60, f"not the perplexity of a working model on English prose: {exact}"
    assert measure() == pytest.approx(exact, rel=2e-3)
    if tokens > 2000:  # what "auto" selects on CPUs that multiply bfloat16
        assert measure(dtype="bfloat16") == pytest.approx(exact, rel=2e-3)
