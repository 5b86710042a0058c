"""Forwards equal the definition for every small S and W, and chunk sizes change no bit."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sinkstream
from tests.data import tiny
from tests.python.exactness.streams import (
    LoadOnce,
    assert_equals,
    even_chunks,
    expected,
    forward_in_chunks,
    stream_ids,
)
from tests.python.lanes import cases, examples

SMALL = [(sinks, window) for sinks in range(6) for window in range(1, 10)]
# Around the block size of 64: a window of one block, a capacity of one block, sinks of more than
# one block, and more than two.
AROUND_BLOCKS = [(4, 64), (4, 60), (3, 130), (66, 5)]
FEW = [(0, 1), (5, 9), (4, 64), (66, 5)]
MANY = [
    (sinks, window)
    for sinks in (0, 1, 4, 63, 64, 65, 130)
    for window in (1, 2, 63, 64, 65, 100, 127, 128, 129)
]


def sizes_around(sinks: int, capacity: int) -> list[int]:
    """Return chunk sizes around the sinks, a block, and the capacity."""
    around = {1, 2, 7, sinks - 1, sinks, sinks + 1, 63, 64, 65, capacity - 1, capacity}
    return sorted(size for size in around | {capacity + 1} if size > 0)


def check_stream(
    model: sinkstream.Model, name: str, sinks: int, window: int, sizes: Iterable[int]
) -> None:
    """Compare four capacities with the definition, and check that no chunk size changes a bit."""
    tokens = 4 * (sinks + window)
    ids = stream_ids(name, tokens)
    whole = forward_in_chunks(model, ids, [tokens], sinks, window)
    assert_equals(whole[0], expected(name, ids, sinks, window))
    for size in sizes:
        again = forward_in_chunks(model, ids, even_chunks(tokens, size), sinks, window)
        assert torch.equal(again, whole), f"chunks of {size}"


# Sinks and window do not depend on the family: all sizes with one family, some with the others.
@pytest.mark.parametrize(
    ("name", "sinks", "window"),
    cases(
        [(name, *sizes) for name in tiny.FAMILIES for sizes in SMALL + AROUND_BLOCKS],
        always=lambda name, *sizes: name == "qwen3" or sizes in FEW,
    ),
)
def test_stream_equals_the_definition_for_four_capacities_in_chunks_of_any_size(
    name: str, sinks: int, window: int, loaded: LoadOnce
) -> None:
    capacity = sinks + window
    # Every size up to just above the capacity; for large capacities, with one family only.
    has_all = capacity < 20 or name == "qwen3"
    sizes = range(1, capacity + 2) if has_all else sizes_around(sinks, capacity)
    check_stream(loaded(name), name, sinks, window, sizes)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*tiny.FAMILIES, *tiny.ROPE_SCHEMES])
@pytest.mark.parametrize(("sinks", "window"), MANY)
def test_stream_equals_the_definition_around_every_block_border(
    name: str, sinks: int, window: int, loaded: LoadOnce
) -> None:
    check_stream(loaded(name), name, sinks, window, sizes_around(sinks, sinks + window))


@pytest.mark.parametrize("name", tiny.ROPE_SCHEMES)
@pytest.mark.parametrize(("sinks", "window"), [(0, 5), (4, 9), (4, 64)])
def test_stream_equals_the_definition_for_every_rotary_scheme(
    name: str, sinks: int, window: int, loaded: LoadOnce
) -> None:
    ids = stream_ids(name, 4 * (sinks + window))
    chunks = even_chunks(ids.shape[1], window + 1)
    found = forward_in_chunks(loaded(name), ids, chunks, sinks, window)
    assert_equals(found[0], expected(name, ids, sinks, window))


@pytest.mark.parametrize(
    ("sinks", "window", "then"),
    cases(
        [(*sizes, then) for sizes in SMALL for then in ("all the rest at once", "single tokens")],
        always=lambda sinks, window, then: then == "single tokens" or sinks in (0, 5),
    ),
)
def test_a_prompt_may_have_any_length(sinks: int, window: int, then: str, loaded: LoadOnce) -> None:
    model, tokens = loaded("llama"), 4 * (sinks + window)
    ids = stream_ids("llama", tokens)
    whole = forward_in_chunks(model, ids, [tokens], sinks, window)
    for length in range(tokens + 1):
        rest = tokens - length
        chunks = [length, *([1] * rest if then == "single tokens" else [rest])]
        again = forward_in_chunks(model, ids, chunks, sinks, window)
        assert torch.equal(again, whole), f"prompt of {length}"


@examples(40)
@given(
    name=st.sampled_from(tiny.FAMILIES),
    sinks=st.one_of(st.integers(0, 8), st.integers(60, 68)),
    window=st.one_of(st.integers(1, 12), st.integers(60, 68)),
    chunks=st.lists(st.one_of(st.integers(0, 9), st.integers(60, 70)), max_size=8),
)
def test_any_sinks_window_and_chunks_end_and_equal_the_definition(
    name: str, sinks: int, window: int, chunks: list[int], loaded: LoadOnce
) -> None:
    model, tokens = loaded(name), sum(chunks)
    ids = stream_ids(name, tokens)
    found = forward_in_chunks(model, ids, chunks or [0], sinks, window)
    if tokens > 0:
        assert_equals(found[0], expected(name, ids, sinks, window))
    assert torch.equal(found, forward_in_chunks(model, ids, [tokens], sinks, window))


@pytest.mark.parametrize("seed", range(8))
def test_chunks_of_uneven_sizes_change_nothing(seed: int, loaded: LoadOnce) -> None:
    model, ids = loaded("qwen2"), stream_ids("qwen2", 700)
    draw = np.random.default_rng(seed)
    sizes: list[int] = []
    while sum(sizes) < 700:
        sizes.append(min(int(draw.choice([0, 1, 2, 5, 63, 64, 65, 200])), 700 - sum(sizes)))
    whole = forward_in_chunks(model, ids, [700], 4, 60)
    assert torch.equal(forward_in_chunks(model, ids, sizes, 4, 60), whole), sizes


@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_threads_change_nothing(name: str, loaded: LoadOnce) -> None:
    # A capacity of several pages: threads divide a single token by pages, a chunk by rows.
    ids = stream_ids(name, 500)
    chunks = [200, *[1] * 60, 16, 17, *[3] * 9, 180]
    one = forward_in_chunks(loaded(name), ids, chunks, 4, 150)
    for threads in (2, 3):
        again = forward_in_chunks(loaded(name, threads=threads), ids, chunks, 4, 150)
        assert torch.equal(again, one), f"{threads} threads"


@pytest.mark.parametrize("count", [2, 3])
def test_rows_of_a_batch_do_not_touch_each_other(count: int, loaded: LoadOnce) -> None:
    model = loaded("llama")
    ids = torch.cat([stream_ids("llama", tokens)[:, :90] for tokens in (90, 91, 92)])[:count]
    together = forward_in_chunks(model, ids, even_chunks(90, 15), 3, 20)
    for row in range(count):
        alone = forward_in_chunks(model, ids[row : row + 1], [90], 3, 20)
        assert torch.equal(together[row], alone[0])


@pytest.mark.parametrize(
    "tokens", [100_000, pytest.param(10_000_000, marks=pytest.mark.slow)], ids="{:,}".format
)
def test_far_down_a_stream_the_output_still_equals_the_definition(
    tokens: int, loaded: LoadOnce
) -> None:
    # Positions are ranks in the cache. So the last logits of the endless stream are those of a
    # short one: the sinks, then the tokens that one layer's window can reach.
    sinks, window = 4, 28
    name = "llama-one-layer"
    chunk = torch.from_numpy(np.random.default_rng(0).integers(0, 293, (1, 1000)))
    model = loaded(name)
    cache = model.new_cache(sinks=sinks, window=window)
    for _ in range(tokens // 1000):
        found = model.forward(chunk, cache)
    short = torch.cat([chunk[:, :sinks], chunk[:, -2 * window :]], dim=1)
    assert_equals(found[0, -window:], expected(name, short, sinks, window)[-window:])
