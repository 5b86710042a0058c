"""`sinkstream bench`: the figures belong to the given model."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import sinkstream
from sinkstream.cli import bench
from tests.python.cli.conftest import Run


def test_it_measures_memory_prompts_and_tokens(run: Run, checkpoint: str) -> None:
    outcome = run("bench", "-m", checkpoint, "--window", "60", "--rounds", "3", "--json")
    found = json.loads(outcome.out)
    assert found["rounds"] == 3
    assert found["model"] == checkpoint
    figures = {figure["name"]: figure for figure in found["figures"]}
    assert list(figures) == [
        "plain read of memory",
        "time to first token, 16-token prompt",
        "prefill, 512-token prompt",
        "decode, 16 cached tokens",
        "decode, 64 cached tokens",  # the capacity
    ]
    for figure in figures.values():
        assert 0 < figure["smallest"] <= figure["median"] <= figure["largest"]
        assert (figure["share_of_read"] is not None) == figure["name"].startswith("decode")


def test_without_a_terminal_it_writes_plain_lines(run: Run, checkpoint: str) -> None:
    lines = run("bench", "-m", checkpoint, "--window", "60", "--rounds", "1").out.splitlines()
    assert any(line.startswith("kernels: ") for line in lines)
    assert any(
        line.startswith("decode, 16 cached tokens: ") and "of memory bandwidth" in line
        for line in lines
    )


def test_rounds_must_be_at_least_one(run: Run, checkpoint: str) -> None:
    outcome = run("bench", "-m", checkpoint, "--rounds", "0")
    assert outcome.code == 2
    assert "bench: `--rounds` must be at least 1, but is 0." in outcome.err


def test_decoding_is_timed_between_tokens_and_prompts_to_the_first(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clock that ticks at each call, a figure is a count of calls."""
    ticks = iter(range(1000))
    with sinkstream.load(checkpoint, window=60, max_sequences=1) as model:
        ids = bench.prompt(model, 20)
        monkeypatch.setattr(bench.time, "perf_counter", lambda: next(ticks))
        assert bench.decode_seconds(model, ids, 5) == 1  # six tokens, five gaps
        assert bench.prefill_seconds(model, ids) == 1


def test_nothing_is_guessed_while_decoding_is_timed(checkpoint: str) -> None:
    """The same prompts again and again: all of it would be guessed."""
    with sinkstream.load(checkpoint, window=60, max_sequences=1, speculation=63) as model:
        ids = bench.prompt(model, 20)
        for _ in range(2):
            bench.decode_seconds(model, ids, 20)
        assert model.stats()["draft_tokens"] == 0
        model.generate(ids, max_tokens=21, ignore_eos=True, temperature=0)
        assert model.stats()["draft_tokens"] > 0


@pytest.mark.parametrize(("name", "is_tied"), [("llama", False), ("qwen2", True)])
def test_a_token_reads_weights_once_and_what_is_live(
    name: str, is_tied: bool, tiny_folder: Callable[[str], Path]
) -> None:
    with sinkstream.load(tiny_folder(name), window=60, max_sequences=1) as model:
        assert model.spec.tie_embeddings == is_tied
        capacity = model.capacity
        panels = -(-model.spec.vocab_size // 16)  # 16 float32 rows each
        embedding = panels * 16 * 4 * model.spec.hidden_size
        read = model.bytes_read_per_token(0)
        assert read == capacity.weight_bytes - (0 if is_tied else embedding)
        assert model.bytes_read_per_token(10) - read == 10 * capacity.bytes_per_token


def test_rounds_that_differ_by_more_than_twice_cause_a_warning() -> None:
    steady = bench.Figure("prefill", "tokens/s", 15, 10, 20)
    noisy = bench.Figure("decode", "tokens/s", 15, 10, 21)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bench.warn_of_noise([steady])
    with pytest.warns(UserWarning, match=r"but decode ranges from 10\.0 to 21\.0 tokens/s\. Close"):
        bench.warn_of_noise([steady, noisy])


def test_every_round_is_counted(checkpoint: str) -> None:
    seen: list[tuple[int, int]] = []
    with sinkstream.load(checkpoint, window=60, max_sequences=1) as model:
        bench.measure(model, 2, lambda done, total: seen.append((done, total)))
    assert seen == [(0, 2), (1, 2), (2, 2)]
