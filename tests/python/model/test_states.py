"""What a session and a stream do with the states of layers that keep no keys: LFM2's convolutions.

`test_family_battery.py` has what holds for every family: chunks, threads, forks, saved sessions.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sinkstream
from tests.data.family_models import save_family

SINKS, WINDOW = 3, 20
LANES = 3
Load = Callable[..., sinkstream.Model]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("lfm2")
    save_family("lfm2", found)
    return found


@pytest.fixture
def load(folder: Path) -> Load:
    def loaded(**options: Any) -> sinkstream.Model:
        usual = {"sinks": SINKS, "window": WINDOW, "threads": 1, "max_sequences": 2}
        return sinkstream.load(folder, dtype="float32", **{**usual, **options})

    return loaded


def ids(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 290, count).tolist()  # type: ignore[no-any-return]


def reply(stream: sinkstream.Stream) -> tuple[list[int], list[float]]:
    result = stream.result()
    return result.token_ids, result.logprobs


def options(seed: int, tokens: int = 6) -> dict[str, Any]:
    return {
        "seed": seed, "max_tokens": tokens, "temperature": 1.0, "ignore_eos": True, "logprobs": 2,
    }  # fmt: skip


def test_the_memory_of_states_is_in_the_capacity(load: Load, folder: Path) -> None:
    with load(max_sequences=2) as model:
        capacity = model.capacity
        of_layer = 2 * model.spec.hidden_size * 4  # the last two inputs
        assert capacity.state_bytes_per_sequence == LANES * 3 * of_layer
        pages = capacity.bytes_per_sequence - capacity.state_bytes_per_sequence
        assert pages == 3 * 64 * capacity.bytes_per_token
        assert capacity.cache_bytes == 2 * capacity.bytes_per_sequence
        assert capacity.bytes_per_token == 2 * 2 * 16 * 2  # only one layer has keys


def test_a_slots_previous_user_is_never_seen(load: Load) -> None:
    prompt = ids(2, 1)  # shorter than a convolution, so that its first tokens read the state
    with load(max_sequences=1) as model:
        expected = reply(model.stream(prompt, **options(5)))
    with load(max_sequences=1) as model:
        for seed, is_read in ((2, True), (3, False), (4, True)):
            other = model.stream(ids(40 * seed, seed), **options(seed, 30))
            if is_read:
                other.result()
            else:
                next(iter(other.events()))
                other.close()
            assert reply(model.stream(prompt, **options(5))) == expected
        with model.session() as session:
            reply(session.stream(ids(9, 6), **options(6)))
        assert reply(model.stream(prompt, **options(5))) == expected


def test_neither_steps_nor_threads_nor_company_change_a_bit(load: Load) -> None:
    prompts = [ids(count, count) for count in (1, 2, 3, 17, 64, 65, 90, 130)]
    with load(max_sequences=1, prefill_chunk=500) as model:
        alone = [reply(model.stream(prompt, **options(7, 40))) for prompt in prompts]
    for chunk, threads in ((1, 1), (7, 2), (64, 1), (500, 2)):
        with load(max_sequences=8, prefill_chunk=chunk, threads=threads) as model:
            streams = [model.stream(prompt, **options(7, 40)) for prompt in prompts]
            assert [reply(stream) for stream in streams] == alone, (chunk, threads)


def test_a_turn_far_back_is_undone_by_reading_some_windows(load: Load) -> None:
    with load() as model, model.session() as session, model.session() as other:
        for seed in range(12):
            text = ids(9, seed)
            expected = reply(session.stream(text, **options(seed)))
            if seed < 8:
                assert reply(other.stream(text, **options(seed))) == expected
        for _ in range(4):
            session.undo()
        again = session.stream(ids(5, 20), **options(20))
        assert reply(again) == reply(other.stream(ids(5, 20), **options(20)))
        # A window of attention, three convolutions of three inputs.
        assert again.stats.replayed_tokens == 1 + (WINDOW - 1) + 3 * 2
        for seed in range(21, 25):
            assert reply(session.stream(ids(4, seed), **options(seed))) == reply(
                other.stream(ids(4, seed), **options(seed))
            )


def test_a_turn_soon_after_the_sinks_is_read_again_from_the_beginning(load: Load) -> None:
    with load() as model, model.session() as session, model.session() as other:
        first = session.stream(ids(9, 1), **options(1)), other.stream(ids(9, 1), **options(1))
        assert reply(first[0]) == reply(first[1])
        for seed in range(2, 7):
            reply(session.stream(ids(9, seed), **options(seed)))
        for _ in range(5):
            session.undo()
        again = session.stream(ids(5, 20), **options(20))
        assert reply(again) == reply(other.stream(ids(5, 20), **options(20)))
        assert again.stats.replayed_tokens == 9 + 6 - 1  # the pending token is read anyway


def test_a_prompt_shares_what_a_lane_stands_for(load: Load) -> None:
    system, text = ids(12, 1), ids(4, 2)
    with load(max_sequences=3, window=60) as model, model.session() as session:
        expected = reply(model.stream([*system, *text], **options(3)))
        session.append(system)
        reply(session.stream(ids(7, 4), **options(4)))
        shared = model.stream([*system, *text], **options(3))
        assert reply(shared) == expected
        assert shared.stats.cached_tokens == len(system)
        half = model.stream([*system[:7], *text], **options(3))
        reply(half)
        assert half.stats.cached_tokens == 0, "no lane stands for half of it"


def test_nothing_is_drafted(load: Load) -> None:
    text = ids(12, 1) * 4  # repeats itself
    with load() as model:
        stream = model.stream(text, prediction=text, max_tokens=30, ignore_eos=True)
        stream.result()
        assert stream.stats.draft_tokens == 0


def test_a_cut_leaves_the_states(load: Load) -> None:
    """The tokens after a cut read the inputs of those before it, whether they are there or not."""
    text = torch.tensor([ids(15, 1)])
    after = torch.tensor([ids(4, 2)])
    with load(kv_dtype="float32") as model:
        cut, whole = model.new_cache(), model.new_cache()
        for cache in (cut, whole):
            model.forward(text, cache)
        cut.evict_range(SINKS + 1, 15)  # all that the convolutions of the next token see
        found = model.forward(after, cut)
        assert not torch.equal(found, model.forward(after, whole))
        restarted = model.new_cache()
        model.forward(text[:, : SINKS + 1], restarted)
        assert not torch.equal(found, model.forward(after, restarted)), "the states were cut, too"
