"""Guessed tokens change how long a reply takes, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sinkstream
from sinkstream import InvalidArgument
from tests.data import tiny

PROMPT = [5, 9, 17, 30, 41]


@pytest.fixture(scope="module")
def model(tiny_folder: Callable[[str], Path]) -> Iterator[sinkstream.Model]:
    with sinkstream.load(
        tiny_folder("llama"), window=60, threads=1, max_sequences=3, speculation=63
    ) as loaded:
        yield loaded


def reply(model: Any, prompt: Any = PROMPT, **options: Any) -> sinkstream.Result:
    given = {"max_tokens": 150, "ignore_eos": True, "seed": 3, **options}
    result: sinkstream.Result = model.stream(prompt, **given).result()
    return result


def bits(result: sinkstream.Result) -> tuple[list[int], bytes]:
    return list(result.token_ids), np.asarray(result.logprobs, np.float32).tobytes()


def test_without_speculation_nothing_is_drafted(model: sinkstream.Model) -> None:
    for _ in range(2):
        stats = reply(model, speculation=0).stats
        assert (stats.draft_tokens, stats.accepted_tokens) == (0, 0)


@pytest.mark.parametrize("temperature", [0, 0.8, 1.5])
def test_what_was_said_before_is_drafted(model: sinkstream.Model, temperature: float) -> None:
    prompt = [*PROMPT, int(10 * temperature)]
    plain = reply(model, prompt, temperature=temperature, speculation=0)
    drafted = reply(model, prompt, temperature=temperature, speculation=20)
    assert bits(drafted) == bits(plain)
    assert drafted.stats.accepted_tokens > 100
    assert drafted.stats.generated_tokens == 150
    assert drafted.stats.evicted_tokens == plain.stats.evicted_tokens > 0
    another = reply(model, prompt, temperature=temperature, speculation=20, seed=4)
    assert bits(another) == bits(
        reply(model, prompt, temperature=temperature, speculation=0, seed=4)
    )


def test_a_prediction_is_drafted(tiny_folder: Callable[[str], Path]) -> None:
    options: dict[str, Any] = {"temperature": 0.8, "speculation": 20}
    with sinkstream.load(tiny_folder("llama"), window=60, threads=1) as model:
        plain = reply(model, temperature=0.8, speculation=0)
    with sinkstream.load(tiny_folder("llama"), window=60, threads=1, speculation=63) as model:
        wrong = [token + (i % 10 == 9) for i, token in enumerate(plain.token_ids)]
        drafted = reply(model, prediction=wrong, **options)
        assert bits(drafted) == bits(plain)
        assert drafted.stats.accepted_tokens > 50
        assert drafted.stats.draft_tokens > drafted.stats.accepted_tokens


def test_a_prediction_may_be_text(smollm2: Path) -> None:
    text = "The keeper opened the old logbook, and read of the storm in which the lamp went out."
    prompt = [{"role": "user", "content": f"Repeat: {text}"}]
    options: dict[str, Any] = {"max_tokens": 24, "temperature": 0}
    with sinkstream.load(smollm2, window=512, threads=2) as model:
        plain = reply(model, prompt, speculation=0, **options)
    with sinkstream.load(smollm2, window=512, threads=2, speculation=8) as model:
        drafted = reply(model, prompt, prediction=text, **options)
        assert bits(drafted) == bits(plain)
        assert drafted.stats.accepted_tokens > 5


def test_a_sessions_turn_is_drafted_and_undone_exactly(model: sinkstream.Model) -> None:
    with model.session() as session, model.session() as plain:
        for number in range(4):
            options: dict[str, Any] = {"max_tokens": 70, "ignore_eos": True, "seed": number % 2}
            expected = plain.stream("ab", speculation=0, **options).result()
            drafted = session.stream("ab", speculation=30, **options).result()
            assert bits(drafted) == bits(expected)
            if number % 2:
                session.undo()
                plain.undo()
        assert drafted.stats.accepted_tokens > 30, "the turn that was undone is said again"
        assert session.token_ids == plain.token_ids


def test_a_model_can_be_loaded_without_it(tiny_folder: Callable[[str], Path]) -> None:
    with sinkstream.load(tiny_folder("llama"), window=60, threads=1, speculation=0) as model:
        reply(model)
        assert reply(model, speculation=9).stats.draft_tokens == 0
        assert model.stats()["draft_tokens"] == model.stats()["accepted_tokens"] == 0


def test_by_default_as_much_is_drafted_as_pays(tiny_folder: Callable[[str], Path]) -> None:
    with sinkstream.load(tiny_folder("llama"), window=60, threads=1) as model:
        plain = reply(model, speculation=0)
        for _ in range(5):
            assert bits(reply(model)) == bits(plain)
        stats = model.stats()
        assert stats["draft_tokens"] >= stats["accepted_tokens"]


@pytest.mark.parametrize("value", [-1, 64])
def test_speculation_out_of_range_is_refused(model: sinkstream.Model, value: int) -> None:
    with pytest.raises(InvalidArgument, match=r"`speculation` must be in \[0, 63\]"):
        reply(model, speculation=value)
    with pytest.raises(InvalidArgument, match=r"^load: `speculation` must be in \[0, 63\]"):
        sinkstream.load("smollm2", speculation=value)


def test_a_prediction_that_is_none_is_refused(model: sinkstream.Model) -> None:
    with pytest.raises(InvalidArgument, match=r"`prediction` must"):
        reply(model, prediction=[10**6])
    with pytest.raises(InvalidArgument, match=r"`prediction` must have at most 131072 entries"):
        reply(model, prediction=[5] * 131_073)
    with pytest.raises(TypeError, match=r"`prediction` must be token ids"):
        reply(model, prediction={"type": "content"})
    with pytest.raises(InvalidArgument, match=r"`prediction`"):
        reply(model, prediction="\ud800")
    assert reply(model, prediction=None).stats.generated_tokens == 150


@pytest.fixture(scope="module")
def folder_of(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Give the folder of a tiny model: of `tiny`, or of a family of transformers."""

    def folder(name: str) -> Path:
        if name in tiny.FAMILIES:
            return tiny_folder(name)
        from tests.data.family_models import save_family  # imports transformers

        path = tmp_path_factory.mktemp(name)
        save_family(name, path)
        return path

    return folder


WINDOWS = [(0, 1), (4, 30), (0, 64), (4, 65), (100, 70)]


@pytest.mark.parametrize(
    ("name", "sinks", "window"),
    [
        *(("llama", *each) for each in WINDOWS),
        ("gemma2", 4, 65),  # half of its layers have a window of their own
        ("gpt_oss", 4, 30),  # experts, and a logit in the denominator
        ("qwen3_moe", 0, 64),
    ],
)
def test_what_rejected_guesses_overwrite_is_not_missed(
    name: str, sinks: int, window: int, folder_of: Callable[[str], Path]
) -> None:
    draw = np.random.default_rng(1)
    options: dict[str, Any] = {"max_tokens": 150, "ignore_eos": True, "seed": 3}
    with sinkstream.load(
        folder_of(name), sinks=sinks, window=window, threads=1, max_sequences=4, speculation=63
    ) as model:
        vocab = model.spec.vocab_size
        prompt = draw.integers(5, vocab, 80).tolist()
        with model.session() as plain, model.session() as drafted:
            for number in range(3):
                expected = plain.stream(prompt, speculation=0, **options).result()
                wrong = draw.random(150) < 1 / 8
                prediction = np.where(wrong, draw.integers(5, vocab, 150), expected.token_ids)
                result = drafted.stream(prompt, prediction=prediction.tolist(), **options).result()
                assert bits(result) == bits(expected)
                assert result.stats.draft_tokens > result.stats.accepted_tokens > 20
                if number == 1:
                    drafted.undo()
                    plain.undo()
            with drafted.fork() as fork:
                assert bits(fork.stream([7], speculation=0, **options).result()) == bits(
                    plain.stream([7], speculation=0, **options).result()
                )
