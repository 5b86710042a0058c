"""Mistakes that other projects shipped, fluent-looking garbage, and the tests that catch them.

Each mistake has a test of complete models in this folder, which `PROOFS` lists, and one of a lower
layer, which `tests/mutants/catalogue.py` names as the killer of the mistake planted into our own
sources. The last test of this file plants mistakes into the definition itself, where that is
possible, to show that these tests would catch them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data import tiny
from tests.mutants.catalogue import MUSEUM
from tests.python.exactness.streams import (
    TOLERANCE,
    LoadOnce,
    assert_equals,
    errors,
    even_chunks,
    expected,
    forward_in_chunks,
    reference,
    stream_ids,
)
from tests.reference.rope import Array
from tests.reference.streaming import Streaming

PROOFS = {
    # keys are shifted although nothing was evicted; a long prompt keeps its old positions
    1: "test_museum.py::test_a_prompt_of_any_length_up_to_ten_capacities_has_positions_by_rank",
    # rotated keys are kept, and the next query is at its index in the text
    2: "test_museum.py::test_single_tokens_past_the_capacity_stand_at_their_rank",
    # keys are rotated again by a scheme other than the model's
    3: "test_museum.py::test_a_key_that_moves_is_turned_by_the_models_own_frequencies",
    # a causal mask for as many queries as keys
    4: "test_museum.py::test_a_chunk_read_after_the_cache_is_full_has_a_window_for_each_token",
    # a freed slot is read
    5: "test_kernels_and_types.py::test_rows_of_a_page_that_hold_no_live_token_are_never_read",
    # sinks are kept and ignored
    6: "test_museum.py::test_changing_a_sink_changes_the_output_forever",
    # the same in the kernels of some types only
    7: "test_museum.py::test_changing_a_sink_changes_the_output_forever",
    # sinks that come in several chunks are not protected
    8: "test_museum.py::test_sinks_that_come_in_several_chunks_are_kept_like_those_of_one",
    # the newest tokens are evicted
    9: "test_museum.py::test_output_depends_on_exactly_the_live_tokens",
    # a key of a narrow type is garbled when it moves
    10: "test_museum.py::test_a_narrow_cache_stays_right_past_ten_windows_and_after_every_cut",
    # reading never ends at odd settings
    11: "test_grid.py::test_any_sinks_window_and_chunks_end_and_equal_the_definition",
    # concurrent sequences disturb each other once they evict
    12: "test_streams.py::test_streams_of_unequal_lengths_give_the_same_together_as_alone",
    # the sinks are gone when the buffer wraps
    13: "test_museum.py::test_perplexity_past_the_capacity_is_that_of_the_definition",
    # keys are rotated in place, and drift
    14: "test_grid.py::test_far_down_a_stream_the_output_still_equals_the_definition",
    # the distance to the sinks grows with the stream
    15: "test_museum.py::test_at_index_ten_million_the_error_is_that_after_the_first_fill",
    # angles in float32
    16: "test_museum.py::test_at_index_ten_million_the_error_is_that_after_the_first_fill",
    # the chunk size changes the result
    17: "test_grid.py::test_stream_equals_the_definition_for_four_capacities_in_chunks_of_any_size",
    # a figure was measured while tokens were silently evicted
    18: "test_reports.py::test_a_report_of_a_stream_past_its_window_says_how_many_were_evicted",
}
HERE = Path(__file__).parent


@pytest.mark.parametrize("number", range(1, 19))
def test_every_mistake_of_the_museum_has_its_tests(number: int) -> None:
    file, test = PROOFS[number].split("::")
    assert re.search(rf"^def {test}\(", (HERE / file).read_text(encoding="utf-8"), re.MULTILINE)
    planted = [mutant.name for mutant in MUSEUM if mutant.museum == number]
    assert len(planted) == (number != 18)  # 18 is about figures, not the core


@pytest.mark.parametrize(("sinks", "window"), [(0, 6), (4, 9), (3, 61)])
def test_a_prompt_of_any_length_up_to_ten_capacities_has_positions_by_rank(
    sinks: int, window: int, loaded: LoadOnce
) -> None:
    model, capacity = loaded("llama"), sinks + window
    ids = stream_ids("llama", 10 * capacity + 3)
    wanted = expected("llama", ids, sinks, window)
    around = (sinks, window, capacity, 2 * capacity, 3 * capacity)
    lengths = {length + offset for length in around for offset in (-1, 0, 1)}
    for length in sorted({n for n in lengths if n > 0} | {10 * capacity}):
        chunks = [length, 1, 1, 1]
        found = forward_in_chunks(model, ids[:, : length + 3], chunks, sinks, window)
        assert_equals(found[0], wanted[: length + 3])


@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_single_tokens_past_the_capacity_stand_at_their_rank(name: str, loaded: LoadOnce) -> None:
    ids = stream_ids(name, 200)
    found = forward_in_chunks(loaded(name), ids, [1] * 200, 4, 36)
    assert_equals(found[0], expected(name, ids, 4, 36))


@pytest.mark.parametrize("name", ["llama", *tiny.ROPE_SCHEMES])
def test_a_key_that_moves_is_turned_by_the_models_own_frequencies(
    name: str, loaded: LoadOnce
) -> None:
    model, definition = loaded(name), Streaming(reference(name), 4, 59)
    cache = model.new_cache(sinks=4, window=60)
    before, after = stream_ids(name, 150), stream_ids(name, 90)
    model.forward(before, cache)
    definition.feed(before[0].tolist())
    cache.evict_range(30, 47)
    definition.evict_range(30, 47)
    assert_equals(model.forward(after, cache)[0], definition.feed(after[0].tolist()))


@pytest.mark.parametrize("size", [2, 7, 20, 21, 64, 150])
def test_a_chunk_read_after_the_cache_is_full_has_a_window_for_each_token(
    size: int, loaded: LoadOnce
) -> None:
    sinks, window = 3, 20
    ids = stream_ids("llama", 70 + 150)
    found = forward_in_chunks(loaded("llama"), ids, [70, *even_chunks(150, size)], sinks, window)
    assert_equals(found[0], expected("llama", ids, sinks, window))


@pytest.mark.parametrize("kv_dtype", ["float32", "float16", "bfloat16", "int8"])
def test_changing_a_sink_changes_the_output_forever(kv_dtype: str, loaded: LoadOnce) -> None:
    model, ids = loaded("llama", kv_dtype=kv_dtype), stream_ids("llama", 400)
    before = forward_in_chunks(model, ids, [400], 4, 16)
    for sink in range(4):
        other = ids.clone()
        other[0, sink] = (other[0, sink] + 1) % 293
        difference = (forward_in_chunks(model, other, [400], 4, 16) - before).abs()
        assert (difference[0, sink:].amax(dim=-1) > 1e-4).all()


@pytest.mark.parametrize("name", tiny.FAMILIES)
@pytest.mark.parametrize(("sinks", "window"), [(2, 30), (5, 8), (70, 40)])
def test_sinks_that_come_in_several_chunks_are_kept_like_those_of_one(
    sinks: int, window: int, name: str, loaded: LoadOnce
) -> None:
    model, capacity = loaded(name), sinks + window
    ids = stream_ids(name, 4 * capacity)
    whole = forward_in_chunks(model, ids, [4 * capacity], sinks, window)
    assert_equals(whole[0], expected(name, ids, sinks, window))
    for size in (1, sinks - 1, sinks, sinks + 1, 64, capacity, capacity + 1):
        chunks = even_chunks(4 * capacity, size)
        again = forward_in_chunks(model, ids, chunks, sinks, window)
        assert torch.equal(again, whole), f"chunks of {size}"


@pytest.mark.parametrize(("sinks", "window"), [(0, 1), (0, 10), (1, 1), (2, 10), (4, 30)])
def test_output_depends_on_exactly_the_live_tokens(
    sinks: int, window: int, loaded: LoadOnce
) -> None:
    # One layer: a token's effect on the hidden states of others cannot outlive it. Row j of the
    # batch has another token j.
    tokens = 3 * (sinks + window)
    model, ids = loaded("llama-one-layer"), stream_ids("llama-one-layer", tokens)
    others = ids.repeat(tokens, 1)
    others[range(tokens), range(tokens)] = (others[range(tokens), range(tokens)] + 1) % 293
    before = forward_in_chunks(model, ids, even_chunks(tokens, 7), sinks, window)
    after = forward_in_chunks(model, others, even_chunks(tokens, 7), sinks, window)
    differs = (before != after).any(dim=-1)
    for j in range(tokens):
        sees_j = [j <= t and (j < sinks or j > t - window) for t in range(tokens)]
        assert differs[j].tolist() == sees_j, f"token {j}"


@pytest.mark.parametrize(
    ("kv_dtype", "tolerance"), [("float16", 2.5e-3), ("bfloat16", 2.5e-2), ("int8", 4e-2)]
)
def test_a_narrow_cache_stays_right_past_ten_windows_and_after_every_cut(
    kv_dtype: str, tolerance: float, loaded: LoadOnce
) -> None:
    model, definition = loaded("llama", kv_dtype=kv_dtype), Streaming(reference("llama"), 4, 39)
    cache = model.new_cache(sinks=4, window=40)
    ids = stream_ids("llama", 450)
    for piece in ids.split(90, dim=1):
        assert_equals(model.forward(piece, cache)[0], definition.feed(piece[0].tolist()), tolerance)
        cache.evict_range(20, 25)
        definition.evict_range(20, 25)


def mean_nll(logits: Array, ids: torch.Tensor) -> float:
    """Return the mean surprise of ids [1, tokens], without the first one, in nats."""
    rows, following = logits[:-1], ids[0, 1:].numpy()
    total = np.log(np.exp(rows).sum(axis=-1)) - rows[np.arange(len(rows)), following]
    return float(total.mean())


@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_perplexity_past_the_capacity_is_that_of_the_definition(
    name: str, loaded: LoadOnce
) -> None:
    ids = stream_ids(name, 1000)
    found = forward_in_chunks(loaded(name), ids, even_chunks(1000, 256), 4, 60)
    wanted = mean_nll(expected(name, ids, 4, 60), ids)
    assert mean_nll(found[0].double().numpy(), ids) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("name", ["llama", *tiny.ROPE_SCHEMES])
def test_at_index_ten_million_the_error_is_that_after_the_first_fill(
    name: str, loaded: LoadOnce
) -> None:
    sinks, window = 4, 60
    model, ids = loaded(name), stream_ids(name, 8 * (sinks + window))
    wanted = expected(name, ids, sinks, window)
    near = model.forward(ids, model.new_cache(sinks=sinks, window=window))
    # After the sinks alone, token 10,000,000 has the rank of token 4.
    cache = model.new_cache(sinks=sinks, window=window)
    model.forward(ids[:, :sinks], cache)
    cache._native.jump(10_000_000)
    far = torch.cat([near[:, :sinks], model.forward(ids[:, sinks:], cache)], dim=1)
    assert_equals(far[0], wanted)
    filled = slice(sinks + window, None)
    error = {
        where: np.sqrt(np.mean(errors(found[0, filled], wanted[filled]) ** 2))
        for where, found in (("near", near), ("far", far))
    }
    assert error["far"] <= 1.5 * error["near"]


# ---- the definition with a mistake ----

S, W = 4, 20
View = tuple[Sequence[int], Sequence[int], int]
"""What a query sees: the indices of keys, their positions, and its own position."""


def ranks(t: int) -> View:
    """The definition."""
    live = [j for j in range(t + 1) if j < S or j > t - W]
    return live, range(len(live)), len(live) - 1


def shifted_from_the_start(t: int) -> View:
    live, positions, _ = ranks(t)
    return live, positions, S + W - 1


def query_at_its_index(t: int) -> View:
    live, positions, _ = ranks(t)
    return live, positions, t


def sinks_ignored(t: int) -> View:
    live, positions, position = ranks(t)
    kept = [(j, p) for j, p in zip(live, positions, strict=True) if j >= S or t < S]
    return [j for j, _ in kept], [p for _, p in kept], position


def newest_evicted(t: int) -> View:
    live = [*range(min(t, S + W - 1)), t]
    return live, range(len(live)), len(live) - 1


def absolute_positions(t: int) -> View:
    live = ranks(t)[0]
    return live, live, t


def evicted_after_each_chunk_of_ten(t: int) -> View:
    live = [j for j in range(t + 1) if j < S or j > t // 10 * 10 - W]
    return live, range(len(live)), len(live) - 1


def window_of_one_more(t: int) -> View:
    live = [j for j in range(t + 1) if j < S or j >= t - W]
    return live, range(len(live)), len(live) - 1


def logits_with(view: Callable[[int], View], ids: torch.Tensor) -> Array:
    decoder = reference("llama")

    def read(layer: int, queries: Array, keys: Array, values: Array) -> Array:
        rope, found = decoder.rope_of(layer), np.empty_like(queries)
        shared = queries.shape[1] // keys.shape[1]
        for t, query in enumerate(queries):
            live, positions, position = view(t)
            own = rope.rotate(query[None], [position])[0]
            rotated = rope.rotate(keys[list(live)], list(positions))
            rotated = np.repeat(rotated, shared, 1)
            weights = np.exp(np.einsum("khd,hd->kh", rotated, own) / math.sqrt(query.shape[1]))
            weights /= weights.sum(axis=0)
            found[t] = np.einsum("kh,khd->hd", weights, np.repeat(values[list(live)], shared, 1))
        return found

    return decoder.run(ids[0].tolist(), read)


def test_the_definition_in_other_words_is_the_same() -> None:
    ids = stream_ids("llama", 100)
    assert errors(torch.from_numpy(logits_with(ranks, ids)), expected("llama", ids, S, W)).max() < (
        1e-12
    )


@pytest.mark.parametrize(
    "mistake",
    [
        shifted_from_the_start,
        query_at_its_index,
        sinks_ignored,
        newest_evicted,
        absolute_positions,
        evicted_after_each_chunk_of_ten,
        window_of_one_more,
    ],
)
def test_a_mistake_would_be_a_thousand_times_the_tolerance(
    mistake: Callable[[int], View],
) -> None:
    ids = stream_ids("llama", 100)
    wrong = torch.from_numpy(logits_with(mistake, ids))
    assert errors(wrong, expected("llama", ids, S, W)).max() > 1000 * TOLERANCE
