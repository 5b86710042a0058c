"""SmolLM2 cut into experts is SmolLM2: perplexity, logits and greedy text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import sinkstream
from tests.data.cut_into_experts import cut_into_experts

pytestmark = pytest.mark.slow
PROSE = Path(__file__).parents[2] / "data" / "prose.txt"
CLEAR = 1e-3
"""By how much the best logit must be above the second for two models to have the same best one."""


@pytest.fixture(scope="module", params=[4, 8])
def both(
    request: pytest.FixtureRequest, smollm2: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[sinkstream.Model, sinkstream.Model]]:
    target = tmp_path_factory.mktemp("experts") / "smollm2-experts.gguf"
    cut = cut_into_experts(smollm2, target, request.param)
    options = {"dtype": "float32", "kv_dtype": "float32", "sinks": 4, "window": 508}
    with (
        sinkstream.load(smollm2, **options) as dense,  # type: ignore[arg-type]
        sinkstream.load(cut, **options) as experts,  # type: ignore[arg-type]
    ):
        yield dense, experts


def losses_of(model: sinkstream.Model, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the loss of each token of a text far past the window, and the logits' margins."""
    cache, losses, margins = model.new_cache(), [], []
    text = torch.tensor([ids])
    for begin in range(0, len(ids) - 1, 256):
        end = min(begin + 256, len(ids) - 1)
        logits = model.forward(text[:, begin:end], cache)[0]
        wanted = text[0, begin + 1 : end + 1]
        losses.append(torch.nn.functional.cross_entropy(logits, wanted, reduction="none"))
        best = logits.topk(2)
        gap = best.values[:, 0] - best.values[:, 1]
        margins.append(torch.stack([gap, best.indices[:, 0].float()], 1))
    return torch.cat(losses).numpy(), torch.cat(margins).numpy()


def test_perplexity_and_the_most_probable_tokens_are_those_of_the_dense_model(
    both: tuple[sinkstream.Model, sinkstream.Model],
) -> None:
    dense, experts = both
    assert dense.tokenizer is not None
    ids = dense.tokenizer.encode(PROSE.read_text()).ids[:8000]
    (losses, margins), (found, chosen) = losses_of(dense, ids), losses_of(experts, ids)
    perplexity = np.exp(losses.astype(np.float64).mean())
    assert np.exp(found.astype(np.float64).mean()) == pytest.approx(perplexity, rel=1e-4)
    is_clear = margins[:, 0] > CLEAR
    assert is_clear.mean() >= 0.95
    assert (margins[is_clear, 1] == chosen[is_clear, 1]).all()


def test_greedy_text_is_that_of_the_dense_model(
    both: tuple[sinkstream.Model, sinkstream.Model],
) -> None:
    tokenizer = both[0].tokenizer
    assert tokenizer is not None
    ids = tokenizer.encode("Three rivers in Europe are").ids
    replies = [
        model.generate(ids, temperature=0, max_tokens=200, ignore_eos=True) for model in both
    ]
    assert replies[0].token_ids == replies[1].token_ids
