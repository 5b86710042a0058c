"""What `perplexity` refuses, and what it only warns about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sinkstream
from sinkstream.errors import InvalidArgument, NonFiniteLogits
from sinkstream.evaluate import perplexity
from tests.python.evaluate.conftest import random_ids


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"method": "sink"}, '`method` must be one of "dense", "protocol", "recompute", "sinks", '
                             '"window", but is "sink".'),
        ({"window": 96}, r"sinks \+ window must be less than the 99 tokens that are read, but is "
                         r"100\. Nothing would be evicted\. Pass a longer text"),
        ({"window": 95}, "but is 99. Nothing would be evicted"),
        ({"method": "window", "window": 99}, "but is 99. Nothing would be evicted"),
        ({"method": "recompute", "window": 99}, "but is 99. Nothing would be evicted"),
        ({"window": 0}, r"`window` must be in \[1, "),
        ({"sinks": -1}, r"`sinks` must be in \[0, "),
        ({"method": "window", "sinks": 2}, '`sinks` must be None with method="window", but is 2'),
        ({"method": "dense", "window": 9}, '`window` must be None with method="dense", but is 9'),
        ({"sample": 9}, '`sample` must be None with method="sinks", but is 9'),
        ({"method": "recompute", "sample": 0}, r"`sample` must be in \[1, 74\], but is 0"),
        ({"method": "recompute", "sample": 75}, r"`sample` must be in \[1, 74\], but is 75"),
        ({"chunk": 0}, "`chunk` must be in"),
        ({"block": 0}, "`block` must be in"),
        ({"max_tokens": 1}, r"`max_tokens` must be in \[2, "),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_named(
    how: dict[str, Any], sentence: str, model: sinkstream.Model
) -> None:
    with pytest.raises(InvalidArgument, match=f"^perplexity: .*{sentence}"):
        perplexity(model, random_ids(100), **how)


@pytest.mark.parametrize("short", [[], [5], "", "a", torch.tensor([[7]])])
def test_a_text_shorter_than_two_tokens_is_refused(short: Any, model: sinkstream.Model) -> None:
    with pytest.raises(InvalidArgument, match=r"must have at least 2 tokens, but has [01]\."):
        perplexity(model, short)


@pytest.mark.parametrize("wrong", [b"text", 5, [1.5, 2.5], [[1, 2], [3, 4]], [True, False]])
def test_neither_text_nor_ids_is_a_type_error(wrong: Any, model: sinkstream.Model) -> None:
    with pytest.raises(TypeError, match="perplexity: `ids_or_text` must be"):
        perplexity(model, wrong)


@pytest.mark.parametrize("wrong", [-1, 293, 2**40, 2**63, 2**70, -(2**70)])
def test_an_id_outside_of_the_vocabulary_is_named(wrong: int, model: sinkstream.Model) -> None:
    with pytest.raises(InvalidArgument, match=rf"item 2 .* in \[0, 293\), but is {wrong}\."):
        perplexity(model, [1, 2, wrong, 4])


def test_a_text_without_a_tokenizer_is_refused(tiny_folder: Callable[[str], Path]) -> None:
    with sinkstream.load(tiny_folder("qwen3"), window=9, threads=1) as other:
        with pytest.raises(InvalidArgument, match="must have a tokenizer to read text"):
            perplexity(other, "some text")
        assert perplexity(other, random_ids(40, vocab=131)).bits_per_byte is None


def test_lone_surrogates_are_named(model: sinkstream.Model) -> None:
    with pytest.raises(InvalidArgument, match=r"perplexity: the text .* U\+D800 at position 1"):
        perplexity(model, "a\ud800b")


def test_a_window_above_the_trained_length_only_warns(
    model: sinkstream.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(model.spec), "trained_length", 20, raising=False)
    with pytest.warns(UserWarning, match="trained length of 20 tokens, but is 29") as seen:
        found = perplexity(model, random_ids(100), window=25)
    assert found.tokens == 99
    assert [entry.filename for entry in seen] == [__file__]


def test_a_dense_run_says_what_memory_it_takes(model: sinkstream.Model) -> None:
    size = 99 * model.capacity.bytes_per_token
    with pytest.warns(UserWarning, match="keeps the keys and values of all 99 tokens") as seen:
        perplexity(model, random_ids(100), method="dense")
    assert f"of all 99 tokens, {size / 1000:.1f} kB." in str(seen[0].message)
    assert [entry.filename for entry in seen] == [__file__]


@pytest.mark.filterwarnings("ignore:perplexity. method .dense. keeps")
def test_a_dense_run_past_the_trained_length_warns(
    model: sinkstream.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(model.spec), "trained_length", 50, raising=False)
    with pytest.warns(UserWarning, match="the model's trained length of 50 tokens, but is 99"):
        perplexity(model, random_ids(100), method="dense")


def test_logits_that_are_not_finite_are_an_error_that_names_the_token(
    model: sinkstream.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = type(model).forward

    def spoiled(self: Any, ids: torch.Tensor, cache: Any = None) -> torch.Tensor:
        logits = forward(self, ids, cache)
        if cache is not None:
            logits[0, 40] = np.nan
        return logits

    monkeypatch.setattr(type(model), "forward", spoiled)
    with pytest.raises(NonFiniteLogits, match="those for token 41 are"):
        perplexity(model, random_ids(100))
