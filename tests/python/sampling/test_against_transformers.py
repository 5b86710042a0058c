"""Sampling agrees with transformers' logits processors, the oracle here."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest
import torch
import transformers

from sinkstream import _core
from tests.python.lanes import products

TABLES = [name for name, supported in _core.kernel_tables() if supported]
VOCAB = 500


def random_row(seed: int, vocab: int = VOCAB, spread: float = 3.0) -> torch.Tensor:
    """Return [1, vocab] distinct normal logits: the quantiles in random order."""
    order = torch.randperm(vocab, generator=torch.Generator().manual_seed(seed))
    row = torch.erfinv((order + 0.5) / vocab * 2 - 1) * math.sqrt(2) * spread
    assert len(row.unique()) == vocab
    return row[None]


def oracle_kept(row: torch.Tensor, warpers: transformers.LogitsProcessorList) -> list[int]:
    """List the ids that transformers keeps, with probabilities in float64 like the reference's."""
    ids = torch.zeros(1, 1, dtype=torch.int64)
    left: list[int] = torch.isfinite(warpers(ids, row.double())[0]).nonzero().flatten().tolist()
    return left


def warpers(
    top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> transformers.LogitsProcessorList:
    """Return transformers' filters in the order of its `generate`."""
    chain = transformers.LogitsProcessorList()
    if top_k:
        chain.append(transformers.TopKLogitsWarper(top_k))
    if top_p < 1:
        chain.append(transformers.TopPLogitsWarper(top_p))
    if min_p > 0:
        chain.append(transformers.MinPLogitsWarper(min_p))
    return chain


@pytest.mark.parametrize(("table", "seed"), products(TABLES, range(20), together=1))
def test_bias_repetition_and_temperature_give_transformers_numbers(table: str, seed: int) -> None:
    row = random_row(seed)
    draw = random.Random(seed)
    live = [draw.randrange(VOCAB) for _ in range(200)]
    bias = {draw.randrange(VOCAB): draw.choice([-5.0, 4.0, -math.inf]) for _ in range(20)}
    repetition, temperature = draw.uniform(0.5, 2), draw.uniform(0.2, 3)

    chain = transformers.LogitsProcessorList(
        [
            transformers.SequenceBiasLogitsProcessor(
                [[[token], value] for token, value in bias.items()]
            ),
            transformers.RepetitionPenaltyLogitsProcessor(repetition),
            transformers.TemperatureLogitsWarper(temperature),
        ]
    )
    expected = chain(torch.tensor([live]), row)[0].numpy()
    result = _core.testing.process_logits(
        row[0].tolist(),
        counts=list(Counter(live).items()),
        bias=list(bias.items()),
        repetition_penalty=repetition,
        temperature=temperature,
        table=table,
    )
    np.testing.assert_array_max_ulp(np.array(result, dtype=np.float32), expected, maxulp=2)


@pytest.mark.parametrize("table", TABLES)
def test_presence_and_frequency_are_subtracted_from_live_tokens(table: str) -> None:
    row = random_row(1)
    live = [3, 3, 3, 7, 400]
    expected = row[0].clone()
    for token, count in Counter(live).items():
        expected[token] -= 0.5 + 0.25 * count
    result = _core.testing.process_logits(
        row[0].tolist(),
        counts=list(Counter(live).items()),
        presence_penalty=0.5,
        frequency_penalty=0.25,
        table=table,
    )
    np.testing.assert_array_equal(np.array(result, dtype=np.float32), expected.numpy())


@pytest.mark.parametrize(
    ("table", "top_k"), products(TABLES, [0, 1, 2, 40, 499, 500, 10_000], together=1)
)
def test_filters_keep_what_transformers_keeps(table: str, top_k: int) -> None:
    for spread, top_p, min_p in itertools.product(
        [0.1, 3.0, 10.0], [1.0, 0.95, 0.5, 0.01], [0.0, 0.05, 0.7, 1.0]
    ):
        for seed in range(3):
            row = random_row(seed, spread=spread)
            kept = _core.testing.kept_tokens(
                row[0].tolist(), top_k=top_k, top_p=top_p, min_p=min_p, table=table
            )
            assert kept == oracle_kept(row, warpers(top_k, top_p, min_p)), (spread, top_p, min_p)


@pytest.mark.parametrize("table", TABLES)
def test_a_whole_vocabulary_is_filtered_as_transformers_does(table: str) -> None:
    row = random_row(5, vocab=49_152)
    for top_k, top_p, min_p in [(0, 0.95, 0.05), (0, 0.9, 0.0), (50, 0.95, 0.0), (5000, 1.0, 0.0)]:
        expected = oracle_kept(row, warpers(top_k, top_p, min_p))
        kept = _core.testing.kept_tokens(
            row[0].tolist(), top_k=top_k, top_p=top_p, min_p=min_p, table=table
        )
        # One token may be so close to the limit of top-p that float and double sums differ.
        assert len(set(kept) ^ set(expected)) <= (1 if top_p < 1 and table != "reference" else 0)


@pytest.mark.parametrize("table", TABLES)
def test_equal_logits_stay_or_go_together(table: str) -> None:
    row = torch.tensor([[2.0, 5.0, 2.0, 2.0, -1.0]])
    together = [0, 1, 2, 3]
    assert _core.testing.kept_tokens(row[0].tolist(), top_k=2, table=table) == together
    assert oracle_kept(row, warpers(top_k=2)) == together
    # transformers cuts among equal logits here, by their index after its sort.
    assert _core.testing.kept_tokens(row[0].tolist(), top_p=0.92, table=table) == together
    assert set(oracle_kept(row, warpers(top_p=0.92))) < set(together)


@pytest.mark.parametrize("table", TABLES)
def test_forbidden_tokens_are_never_kept(table: str) -> None:
    row = random_row(7)
    row[0, ::2] = -math.inf
    for filters in [{}, {"top_k": 300}, {"top_p": 0.99}, {"min_p": 1e-9}]:
        kept = _core.testing.kept_tokens(row[0].tolist(), table=table, **filters)
        assert kept
        assert all(token % 2 == 1 for token in kept)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"top_p": 1.5}, r"`top_p` must be in \(0, 1\], but is 1.5\."),
        ({"top_p": math.nan}, r"`top_p` must be in \(0, 1\], but is nan\."),
        ({"top_k": -1}, r"`top_k` must be in \[0, 2147483647\], but is -1\."),
        ({"min_p": math.inf}, r"`min_p` must be in \[0, 1\], but is inf\."),
    ],
)
def test_values_out_of_range_are_refused(call: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _core.testing.kept_tokens([1.0, 2.0], **call)


def test_ids_outside_the_vocabulary_never_reach_arithmetic() -> None:
    for token in (-1, 2):
        with pytest.raises(ValueError, match=r"ids in \[0, 2\)"):
            _core.testing.process_logits([1.0, 2.0], counts=[(token, 1)])
        with pytest.raises(ValueError, match=rf"in \[0, 2\), but is {token}"):
            _core.testing.process_logits([1.0, 2.0], bias=[(token, 1.0)])
