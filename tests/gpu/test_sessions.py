"""Sessions on a GPU, and moved between GPU and CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.conftest import Load
from tests.gpu.sizes import SIZES
from tests.gpu.streams import SAMPLED, bits, prompt

LONG = 2 * SIZES.window + 5


@pytest.mark.parametrize("kv_dtype", SIZES.cache_types)
def test_turns_are_one_long_request(load: Load, kv_dtype: str) -> None:
    text = prompt(LONG)
    with load(kv_dtype=kv_dtype) as model:
        whole = model.stream(text, **SAMPLED, seed=5).result()
        with model.session() as session:
            for begin in range(0, LONG - 7, 50):
                session.append(text[begin : min(begin + 50, LONG - 7)])
            turned = session.stream(text[LONG - 7 :], **SAMPLED, seed=5).result()
    assert bits(turned) == bits(whole)


@pytest.mark.parametrize("kv_dtype", SIZES.cache_types)
def test_a_saved_session_goes_on_bit_for_bit(load: Load, tmp_path: Path, kv_dtype: str) -> None:
    path = tmp_path / "talk.safetensors"
    with load(kv_dtype=kv_dtype) as model, model.session() as session:
        session.append(prompt(LONG))
        session.save(path)
        went_on = session.stream([8], **SAMPLED, seed=2).result()
    with load(kv_dtype=kv_dtype) as model, model.load_session(path) as session:
        loaded = session.stream([8], **SAMPLED, seed=2).result()
    assert bits(loaded) == bits(went_on)


@pytest.mark.parametrize(("origin", "goal"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_a_session_moves_from(load: Load, tmp_path: Path, origin: str, goal: str) -> None:
    path = tmp_path / "talk.safetensors"
    with load(device=origin) as model, model.session() as session:
        session.append(prompt(LONG))
        session.save(path)
        ids = session.token_ids
        expected = session.stream([8], max_tokens=1, temperature=0, logprobs=1).result()
    with load(device=goal) as model, model.load_session(path) as moved:
        assert moved.token_ids == ids
        assert moved.stats.evicted_tokens > SIZES.window
        got = moved.stream([8], max_tokens=1, temperature=0, logprobs=1).result()
    assert abs(got.logprobs[0] - expected.logprobs[0]) < 0.1


def test_a_fork_goes_on_by_itself(load: Load) -> None:
    with load(max_sequences=3) as model, model.session() as session:
        session.append(prompt(LONG))
        with session.fork() as fork:
            session.append(prompt(6, 9))
            forked = fork.stream([8], **SAMPLED, seed=2).result()
        alone = model.stream([*prompt(LONG), 8], **SAMPLED, seed=2).result()
    assert bits(forked) == bits(alone)
