"""Blocks, means, files and differences of results, compared with plain arithmetic."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import sinkstream
from sinkstream.errors import InvalidArgument
from sinkstream.evaluate import Difference, PerplexityResult, compare, perplexity
from tests.python.evaluate.conftest import make_result, random_ids


@pytest.mark.parametrize("block", [1, 7, 50, 99, 100, 1000])
def test_blocks_are_those_of_the_tokens_indices(block: int, model: sinkstream.Model) -> None:
    result = perplexity(model, random_ids(100), block=block)
    nll = np.concatenate([[np.nan], result.nll.astype(np.float64)])  # of token 0: none
    cut = [nll[begin : begin + block] for begin in range(0, 100, block)]
    scored = [values[~np.isnan(values)] for values in cut]
    assert result.block_tokens == tuple(map(len, scored))
    expected = [float(values.mean()) if len(values) else None for values in scored]
    assert result.block_mean_nll == pytest.approx(expected)
    running = [float(np.nanmean(nll[: (i + 1) * block])) for i in range(1, len(cut))]
    assert list(result.running_mean_nll[1:]) == pytest.approx(running)
    assert len(result.block_seconds) == len(cut)
    assert all((spent > 0) == (count > 0) for spent, count in
               zip(result.block_seconds, result.block_tokens, strict=True))  # fmt: skip


def test_perplexity_of_the_second_half_is_that_of_its_tokens(model: sinkstream.Model) -> None:
    result = perplexity(model, random_ids(100), block=25)
    expected = math.exp(result.nll[49:].astype(np.float64).mean())  # tokens 50 to 99
    assert result.perplexity_from(50) == pytest.approx(expected)
    assert result.perplexity_from(0) == pytest.approx(result.perplexity)


@pytest.mark.parametrize("index", [-25, 10, 100, 125])
def test_a_half_that_no_block_begins_is_refused(index: int, model: sinkstream.Model) -> None:
    result = perplexity(model, random_ids(100), block=25)
    with pytest.raises(InvalidArgument, match=f"a multiple of 25 .*, but is {index}"):
        result.perplexity_from(index)


def test_a_result_survives_its_file(model: sinkstream.Model, tmp_path: Path) -> None:
    result = perplexity(model, random_ids(100), method="recompute", sample=5, block=10)
    assert None in result.block_mean_nll
    result.to_json(tmp_path / "result.json")
    again = PerplexityResult.from_json(tmp_path / "result.json")
    assert again == result
    assert again.block_seconds == result.block_seconds
    assert again.nll is None
    assert again.running_mean_nll == result.running_mean_nll


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"perplexity": 3}'])
def test_a_file_of_something_else_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(content)
    with pytest.raises(InvalidArgument, match="PerplexityResult: "):
        PerplexityResult.from_json(tmp_path / "other.json")


def test_a_file_holds_numbers_that_any_reader_takes(tmp_path: Path) -> None:
    make_result().to_json(tmp_path / "result.json")

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is not JSON")

    values = json.loads((tmp_path / "result.json").read_text(), parse_constant=refuse)
    assert values["block_mean_nll"] == [3.5, 3.0, 2.5]
    assert "nll" not in values


def test_differences_are_paired(model: sinkstream.Model) -> None:
    ids = random_ids(120)
    sinks = perplexity(model, ids)
    exact = perplexity(model, ids, method="recompute", sample=20)
    found = compare(sinks, exact)
    difference = sinks.nll[exact.scored - 1].astype(np.float64) - exact.nll
    assert (found.of, found.against, found.tokens) == ("sinks", "recompute", 20)
    assert found.mean == pytest.approx(difference.mean())
    assert found.standard_error == pytest.approx(difference.std(ddof=1) / math.sqrt(20))
    low, high = found.interval
    assert high - low == pytest.approx(2 * 1.96 * found.standard_error, rel=1e-4)
    assert compare(sinks, sinks).interval == (0, 0)
    assert Difference.from_dict(found.as_dict()) == found


def test_results_of_two_texts_are_not_compared(model: sinkstream.Model) -> None:
    with pytest.raises(InvalidArgument, match="must share at least 2 scored tokens of one text"):
        compare(perplexity(model, random_ids(100)), perplexity(model, random_ids(101)))


def test_results_from_files_are_not_compared(model: sinkstream.Model) -> None:
    with pytest.raises(InvalidArgument, match="read from a file"):
        compare(perplexity(model, random_ids(100)), make_result())
