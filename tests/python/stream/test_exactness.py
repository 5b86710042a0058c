"""Streaming forwards equal the literal float64 definition, whatever the chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import sinkstream
from tests.data import tiny
from tests.reference.decoder import Decoder
from tests.reference.window import live_indices

SMALL = [(sinks, window) for sinks in range(6) for window in range(1, 10)]
# Around the block size of 64: a window of one block, a capacity of one block, and more than two.
AROUND_BLOCKS = [(4, 64), (4, 60), (3, 130)]

Folder = Callable[[str], Path]


@cache
def stream_ids(name: str, tokens: int) -> torch.Tensor:
    vocab = tiny.CONFIGS[name][0]["vocab_size"]
    return torch.from_numpy(np.random.default_rng(tokens).integers(0, vocab, (1, tokens)))


@cache
def reference(name: str) -> Decoder:
    drawn = tiny.build(name)
    return Decoder.from_hugging_face(drawn.config, drawn.weights)


def load(folder: Path, sinks: int, window: int) -> sinkstream.Model:
    # One thread: steps of a tiny model are shorter than it takes to wake a second one.
    return sinkstream.load(
        folder, dtype="float32", kv_dtype="float32", sinks=sinks, window=window, threads=1
    )


def forward_in_chunks(
    model: sinkstream.Model, ids: torch.Tensor, chunks: list[int]
) -> torch.Tensor:
    """Feed `ids` [1, tokens] to one fresh cache, piece after piece."""
    cache = model.new_cache()
    pieces = torch.split(ids, chunks, dim=1)
    return torch.cat([model.forward(piece, cache) for piece in pieces], dim=1)


def chunk_sizes(name: str, capacity: int) -> Iterable[int]:
    """Every size from 1 to the capacity; of the larger ones, for one family only."""
    if capacity < 20 or name == "qwen3":
        return range(1, capacity + 1)
    return (1, 2, 7, 63, 64, 65, capacity - 1, capacity)


def even_chunks(tokens: int, size: int) -> list[int]:
    return [min(size, tokens - begin) for begin in range(0, tokens, size)]


def assert_equals_reference(found: torch.Tensor, expected: np.ndarray) -> None:
    """Every row must be right relative to its largest logit: float32 rounding, nothing else."""
    difference = np.abs(found.numpy() - expected).max(axis=-1)
    wrong = np.flatnonzero(difference > 1e-5 * np.abs(expected).max(axis=-1))
    assert wrong.size == 0, f"first wrong at index {wrong[0]}, by {difference[wrong[0]]}"


@pytest.mark.parametrize("name", tiny.FAMILIES)
@pytest.mark.parametrize(("sinks", "window"), SMALL + AROUND_BLOCKS)
def test_stream_equals_the_definition_for_four_capacities_in_chunks_of_any_size(
    name: str, sinks: int, window: int, tiny_folder: Folder
) -> None:
    capacity = sinks + window
    ids = stream_ids(name, 4 * capacity)
    with load(tiny_folder(name), sinks, window) as model:
        whole = model.forward(ids, model.new_cache())
        assert_equals_reference(whole[0], reference(name).forward(ids[0].tolist(), sinks, window))
        for size in chunk_sizes(name, capacity):
            chunks = even_chunks(4 * capacity, size)
            assert torch.equal(forward_in_chunks(model, ids, chunks), whole), f"chunks of {size}"


@pytest.mark.parametrize("name", tiny.ROPE_SCHEMES)
@pytest.mark.parametrize(("sinks", "window"), [(0, 5), (4, 9), (4, 64)])
def test_stream_equals_the_definition_for_every_rotary_scheme(
    name: str, sinks: int, window: int, tiny_folder: Folder
) -> None:
    ids = stream_ids(name, 4 * (sinks + window))
    with load(tiny_folder(name), sinks, window) as model:
        found = forward_in_chunks(model, ids, even_chunks(ids.shape[1], window + 1))
    assert_equals_reference(found[0], reference(name).forward(ids[0].tolist(), sinks, window))


@pytest.mark.parametrize(("sinks", "window"), [(0, 1), (0, 5), (1, 9), (4, 3), (5, 8)])
def test_prompts_of_every_length_are_beginnings_of_longer_ones(
    sinks: int, window: int, tiny_folder: Folder
) -> None:
    tokens = 4 * (sinks + window)
    ids = stream_ids("llama", tokens)
    with load(tiny_folder("llama"), sinks, window) as model:
        whole = model.forward(ids, model.new_cache())
        for length in range(tokens + 1):
            # The prompt at once, then one token at a time, as generation goes.
            chunks = [length] + [1] * (tokens - length)
            assert torch.equal(forward_in_chunks(model, ids, chunks), whole), f"prompt of {length}"


@pytest.mark.parametrize("seed", range(8))
def test_chunks_of_uneven_sizes_change_nothing(seed: int, tiny_folder: Folder) -> None:
    ids = stream_ids("qwen2", 700)
    draw = np.random.default_rng(seed)
    sizes: list[int] = []
    while sum(sizes) < 700:
        sizes.append(min(int(draw.choice([0, 1, 2, 5, 63, 64, 65, 200])), 700 - sum(sizes)))
    with load(tiny_folder("qwen2"), 4, 60) as model:
        whole = model.forward(ids, model.new_cache())
        assert torch.equal(forward_in_chunks(model, ids, sizes), whole), sizes


@pytest.mark.parametrize("count", [1, 2, 3])
def test_streams_with_caches_of_their_own_do_not_touch_each_other(
    count: int, tiny_folder: Folder
) -> None:
    with load(tiny_folder("llama"), 3, 20) as model:
        ids = torch.cat([stream_ids("llama", tokens)[:, :90] for tokens in (90, 91, 92)])[:count]
        alone = [model.forward(row[None], model.new_cache())[0] for row in ids]
        batch = model.new_cache(batch=count)
        together = [model.forward(ids[:, i : i + 15], batch) for i in range(0, 90, 15)]
        for row in range(count):
            assert torch.equal(torch.cat(together, dim=1)[row], alone[row])


def test_changing_a_sink_changes_the_output_for_ever(tiny_folder: Folder) -> None:
    ids = stream_ids("llama", 400)
    for sink in range(4):
        other = ids.clone()
        other[0, sink] = (other[0, sink] + 1) % 293
        with load(tiny_folder("llama"), 4, 16) as model:
            difference = (
                model.forward(ids, model.new_cache()) - model.forward(other, model.new_cache())
            ).abs()
        assert (difference[0, sink:].amax(dim=-1) > 1e-4).all()


def test_an_evicted_token_is_forgotten_at_once_and_completely(tiny_folder: Folder) -> None:
    # One layer: what a token leaves in others' hidden states cannot outlive it.
    sinks, window, changed = 2, 10, 37
    ids = stream_ids("llama-one-layer", 80)
    other = ids.clone()
    other[0, changed] = (other[0, changed] + 1) % 293
    with load(tiny_folder("llama-one-layer"), sinks, window) as model:
        before = model.forward(ids, model.new_cache())[0]
        after = model.forward(other, model.new_cache())[0]
    differs = (before != after).any(dim=-1)
    expected = torch.zeros(80, dtype=torch.bool)
    expected[changed : changed + window] = True  # the current token is one of the window
    assert torch.equal(differs, expected)


def test_without_sinks_the_first_tokens_are_forgotten_too(tiny_folder: Folder) -> None:
    ids = stream_ids("llama-one-layer", 60)
    other = ids.clone()
    other[0, :4] = (other[0, :4] + 1) % 293
    with load(tiny_folder("llama-one-layer"), 0, 10) as model:
        before = model.forward(ids, model.new_cache())[0]
        after = model.forward(other, model.new_cache())[0]
    assert not torch.equal(before[:13], after[:13])
    assert torch.equal(before[13:], after[13:])


@pytest.mark.parametrize(
    "tokens", [100_000, pytest.param(10_000_000, marks=pytest.mark.slow)], ids="{:,}".format
)
def test_far_down_a_stream_the_output_still_equals_the_definition(
    tokens: int, tiny_folder: Folder
) -> None:
    # Positions are ranks in the cache. So the last logits of the endless stream are those of a
    # short one: the sinks, then as many tokens as one layer's window can reach back.
    sinks, window = 4, 28
    name = "llama-one-layer"
    draw = np.random.default_rng(0)
    chunk = torch.from_numpy(draw.integers(0, 293, (1, 1000)))
    with load(tiny_folder(name), sinks, window) as model:
        cache = model.new_cache()
        for _ in range(tokens // 1000):
            found = model.forward(chunk, cache)
    short = [*chunk[0, :sinks].tolist(), *chunk[0, -2 * window :].tolist()]
    expected = reference(name).forward(short, sinks, window)
    assert_equals_reference(found[0, -window:], expected[-window:])


@pytest.mark.parametrize(("sinks", "window"), [(0, 1), (0, 7), (4, 3), (4, 60)])
def test_cache_counts_what_is_live_and_what_was_evicted_and_never_grows(
    sinks: int, window: int, tiny_folder: Folder
) -> None:
    ids = stream_ids("qwen3", 10 * (sinks + window))
    with load(tiny_folder("qwen3"), sinks, window) as model:
        cache = model.new_cache()
        held = cache.nbytes
        assert (cache.length, cache.live, cache.evicted) == (0, 0, 0)
        for t in range(ids.shape[1]):
            model.forward(ids[:, t : t + 1], cache)
            assert cache.length == t + 1
            assert cache.live == len(live_indices(t, sinks, window))
            assert cache.evicted == cache.length - cache.live
        assert cache.nbytes == held
