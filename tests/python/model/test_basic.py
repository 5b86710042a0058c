"""The textbook functions: the same tokens with and without a cache, and the books' shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import sinkstream
from sinkstream.basic import generate_text_basic, generate_text_basic_cache
from tests.data import tiny

BOTH = [generate_text_basic, generate_text_basic_cache]


class Recorder:
    """Forwards calls, and records the shapes of the logits."""

    def __init__(self, model: sinkstream.Model) -> None:
        self.model = model
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, ids: torch.Tensor, cache: Any = None) -> torch.Tensor:
        logits = self.model.forward(ids, cache)
        self.shapes.append(tuple(logits.shape))
        return logits

    def new_cache(self, batch: int = 1) -> Any:
        return self.model.new_cache(batch)


@pytest.fixture(scope="module", params=tiny.FAMILIES)
def model(
    request: pytest.FixtureRequest, tiny_folder: Callable[[str], Path], threads: int
) -> Iterator[sinkstream.Model]:
    with sinkstream.load(
        tiny_folder(request.param), dtype="float32", kv_dtype="float32", window=96, threads=threads
    ) as loaded:
        yield loaded


@pytest.mark.parametrize("batch", [1, 3])
def test_cache_changes_the_shapes_and_not_the_tokens(model: sinkstream.Model, batch: int) -> None:
    vocab = model.spec.vocab_size
    prompts = torch.arange(batch * 9).reshape(batch, 9) * 5 % vocab
    plain, cached = Recorder(model), Recorder(model)
    expected = generate_text_basic(plain, prompts, 40)
    assert expected.shape == (batch, 40)
    assert torch.equal(generate_text_basic_cache(cached, prompts, 40), expected)
    assert plain.shapes == [(batch, tokens, vocab) for tokens in range(9, 49)]
    assert cached.shapes == [(batch, 9, vocab)] + [(batch, 1, vocab)] * 39


@pytest.mark.parametrize("generate", BOTH)
def test_end_token_is_not_part_of_the_text(
    generate: Callable[..., torch.Tensor], model: sinkstream.Model
) -> None:
    prompt = torch.tensor([[1, 2, 3]])
    free = generate(model, prompt, 20)[0].tolist()
    stop = free[7]
    assert generate(model, prompt, 20, eos_token_id=stop)[0].tolist() == free[: free.index(stop)]


@pytest.mark.parametrize("generate", BOTH)
def test_row_that_has_ended_repeats_the_end_token_until_all_have(
    generate: Callable[..., torch.Tensor], model: sinkstream.Model
) -> None:
    prompts = torch.tensor([[1, 2, 3], [9, 8, 7]])
    free = generate(model, prompts, 20).tolist()
    ends = [token for token in free[0] if token not in free[1]]
    if not ends:
        pytest.skip("both rows use the same tokens")
    found = generate(model, prompts, 20, eos_token_id=ends[0])
    begin = free[0].index(ends[0])
    assert found[0].tolist() == free[0][:begin] + [ends[0]] * (20 - begin)
    assert found[1].tolist() == free[1]


@pytest.mark.parametrize("generate", BOTH)
def test_zero_new_tokens_give_an_empty_result(
    generate: Callable[..., torch.Tensor], model: sinkstream.Model
) -> None:
    assert generate(model, torch.tensor([[1, 2]]), 0).shape == (1, 0)


def test_cache_goes_on_past_its_capacity(tiny_folder: Callable[[str], Path], threads: int) -> None:
    with sinkstream.load(tiny_folder("llama"), sinks=2, window=10, threads=threads) as small:
        assert generate_text_basic_cache(small, torch.tensor([[1, 2, 3]]), 100).shape == (1, 100)
