"""Cutting and copying caches: `evict_for_space`, `evict_range` and `copy`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import sinkstream
from tests.data import tiny
from tests.python.lanes import products
from tests.reference.hugging_face import from_hugging_face
from tests.reference.streaming import Streaming

Folder = Callable[[str], Path]

SINKS, WINDOW = 3, 40
RECENT = WINDOW - 1
# The error of float32, and of rounding a moved key to float16 once more.
TOLERANCES = {"float32": 1e-5, "float16": 1e-2}


@pytest.fixture(params=TOLERANCES)
def kv_dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(tiny_folder: Folder, kv_dtype: str) -> Iterator[sinkstream.Model]:
    with sinkstream.load(
        tiny_folder("llama-yarn"),
        dtype="float32",
        kv_dtype=kv_dtype,
        sinks=SINKS,
        window=WINDOW,
        threads=1,
    ) as model:
        yield model


@pytest.fixture
def definition() -> Streaming:
    return definition_after(0)


def definition_after(prompt: int) -> Streaming:
    """Return the definition after a prompt of N tokens. Feeding it is slow, so it is fed once."""
    fed = _fed(prompt)
    copy = Streaming(fed.decoder, SINKS, RECENT)
    copy.keys = [list(keys) for keys in fed.keys]
    copy.values = [list(values) for values in fed.values]
    return copy


@cache
def _fed(prompt: int) -> Streaming:
    drawn = tiny.build("llama-yarn")
    fed = Streaming(from_hugging_face(drawn.config, drawn.weights), SINKS, RECENT)
    if prompt:
        fed.feed(draw(prompt))
    return fed


def draw(tokens: int, seed: int = 1) -> list[int]:
    vocab = tiny.CONFIGS["llama-yarn"][0]["vocab_size"]
    return np.random.default_rng(seed).integers(0, vocab, tokens).tolist()


def feed(model: sinkstream.Model, cache: sinkstream.Cache, ids: list[int]) -> torch.Tensor:
    return model.forward(torch.tensor([ids]), cache)[0]


def assert_equal(found: torch.Tensor, expected: np.ndarray, kv_dtype: str) -> None:
    error = np.abs(found.numpy() - expected).max() / np.abs(expected).max()
    assert error < TOLERANCES[kv_dtype]


@pytest.mark.parametrize(
    ("before", "count"), products([0, 2, 30, 43, 200], [0, 1, 10, RECENT], together=1)
)
def test_room_for_a_turn_leaves_what_the_original_leaves(
    before: int,
    count: int,
    model: sinkstream.Model,
    kv_dtype: str,
) -> None:
    cache, definition = model.new_cache(), definition_after(before)
    prompt, turn = draw(before), draw(count, seed=2)
    if prompt:
        feed(model, cache, prompt)
    cache.evict_for_space(count)
    definition.evict_for_space(count)
    if turn:
        # The entire turn in one forward pass: in both, nothing is evicted during it.
        expected = definition.feed_at_once(turn)
        assert_equal(feed(model, cache, turn), expected, kv_dtype)
        definition.evict()
    following = draw(60, seed=3)
    assert_equal(feed(model, cache, following), definition.feed(following), kv_dtype)


@pytest.mark.parametrize(
    ("before", "start", "end"),
    products([42, 43, 150, 600], [(3, 4), (3, 42), (10, 30), (41, 42), (20, 21)], together=1),
)
def test_a_cut_in_the_middle_moves_the_older_tokens_up(
    before: int,
    start: int,
    end: int,
    model: sinkstream.Model,
    kv_dtype: str,
) -> None:
    cache, definition = model.new_cache(), definition_after(before)
    prompt, following = draw(before), draw(100, seed=2)
    feed(model, cache, prompt)
    cache.evict_range(start, end)
    definition.evict_range(start, end)
    assert_equal(feed(model, cache, following), definition.feed(following), kv_dtype)


def test_cuts_may_follow_each_other(
    model: sinkstream.Model, definition: Streaming, kv_dtype: str
) -> None:
    cache = model.new_cache(batch=2)
    random = np.random.default_rng(7)
    for turn in range(12):
        ids = draw(int(random.integers(1, 60)), seed=turn)
        found = model.forward(torch.tensor([ids, ids]), cache)
        assert_equal(found[0], definition.feed(ids), kv_dtype)
        assert torch.equal(found[0], found[1])
        start, end = sorted(random.integers(SINKS, definition.cached + 1, 2).tolist())
        if start < end:
            cache.evict_range(start, end)
            definition.evict_range(start, end)
        if turn % 3 == 0:
            cache.evict_for_space(17)
            definition.evict_for_space(17)


def test_what_is_cut_is_counted_as_evicted(model: sinkstream.Model) -> None:
    cache = model.new_cache()
    feed(model, cache, draw(100))
    assert (cache.live, cache.evicted) == (43, 57)
    cache.evict_range(10, 20)  # plus the token that the next one would have evicted
    assert (cache.live, cache.evicted) == (32, 68)
    feed(model, cache, draw(5))
    assert (cache.live, cache.evicted, cache.length) == (37, 68, 105)


def test_a_copy_goes_on_with_the_same_bits_and_alone(model: sinkstream.Model) -> None:
    cache = model.new_cache()
    prompt, one, other = draw(130), draw(90, seed=2), draw(90, seed=3)
    feed(model, cache, prompt)
    cache.evict_range(7, 19)
    copy = cache.copy()
    assert (copy.length, copy.live, copy.evicted) == (130, cache.live, cache.evicted)
    expected = feed(model, cache, one)
    changed = feed(model, copy.copy(), other)
    assert torch.equal(feed(model, copy, one), expected)
    assert not torch.equal(changed, expected)


@pytest.mark.parametrize(
    ("start", "end", "rule"),
    [
        (2, 9, "3 <= start < end <= 42"),
        (9, 9, "3 <= start < end <= 42"),
        (9, 43, "3 <= start < end <= 42"),
        (-1, 9, "3 <= start < end <= 42"),
        (9, 1 << 60, "3 <= start < end <= 42"),
    ],
)
def test_a_range_outside_the_window_is_refused_and_nothing_is_lost(
    start: int, end: int, rule: str, model: sinkstream.Model
) -> None:
    cache = model.new_cache()
    feed(model, cache, draw(60))
    expected = feed(model, cache.copy(), draw(20, seed=2))
    with pytest.raises(sinkstream.InvalidArgument, match=f"evict_range: .*{rule}"):
        cache.evict_range(start, end)
    assert torch.equal(feed(model, cache, draw(20, seed=2)), expected)


@pytest.mark.parametrize("count", [-1, WINDOW, 1 << 60])
def test_room_that_no_window_has_is_refused(count: int, model: sinkstream.Model) -> None:
    rule = rf"evict_for_space: `n` must be in \[0, {WINDOW - 1}\]"
    with pytest.raises(sinkstream.InvalidArgument, match=rule):
        model.new_cache().evict_for_space(count)


def test_a_cache_has_sinks_and_window_of_its_own(
    model: sinkstream.Model, definition: Streaming, kv_dtype: str
) -> None:
    ids = draw(80)
    decoder = definition.decoder
    cache = model.new_cache(sinks=1, window=5)
    assert_equal(feed(model, cache, ids), decoder.forward(ids, 1, 5), kv_dtype)
    assert cache.live == 6
    dense = model.new_cache(sinks=0, window=80)
    assert_equal(feed(model, dense, ids), decoder.forward(ids), kv_dtype)


@pytest.mark.parametrize(
    ("name", "value"), [("batch", 0), ("sinks", -1), ("window", 0), ("window", 1 << 40)]
)
def test_a_cache_that_cannot_be_is_refused(name: str, value: int, model: sinkstream.Model) -> None:
    with pytest.raises(sinkstream.InvalidArgument, match=f"new_cache: `{name}` must be in"):
        model.new_cache(**{name: value})
