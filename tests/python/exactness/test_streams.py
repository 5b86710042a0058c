"""`stream()` gives the same ids and the same log-probabilities, bit for bit, every time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from tests.data import tiny

Outcome = tuple[list[int], list[float]]


def run(model: sinkstream.Model, prompt: list[int], tokens: int, **options: Any) -> Outcome:
    """Stream to the end; return ids and log-probabilities of the generated tokens."""
    sampling = {"temperature": 1.0, "seed": 20_231, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    stream = model.stream(
        prompt, max_tokens=tokens, ignore_eos=True, logprobs=1, **{**sampling, **options}
    )
    result = stream.result()
    assert result.finish_reason == "length"
    assert len(result.token_ids) == len(result.logprobs) == tokens
    return list(result.token_ids), list(result.logprobs)


@pytest.mark.parametrize("name", tiny.FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "auto"])
def test_stream_is_the_same_for_any_threads_and_prefill_chunk(
    name: str, dtype: str, tiny_folder: Callable[[str], Path]
) -> None:
    vocab = tiny.CONFIGS[name][0]["vocab_size"]
    prompt = [(7 * i * i + i) % vocab for i in range(150)]
    outcomes: list[Outcome] = []
    for threads, chunk in [(1, None), (2, None), (1, 1), (2, 3), (1, 4), (1, 5), (2, 64), (1, 70)]:
        with sinkstream.load(
            tiny_folder(name),
            dtype=dtype,
            sinks=4,
            window=60,
            threads=threads,
            prefill_chunk=chunk,
        ) as model:
            outcomes += [run(model, prompt, 200), run(model, prompt, 200)]
    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert len(set(outcomes[0][0])) > 10, "a stream that repeats one token would prove nothing"


@pytest.mark.parametrize("name", tiny.FAMILIES)
@pytest.mark.parametrize("threads", [1, 2])
def test_streams_of_unequal_lengths_give_the_same_together_as_alone(
    name: str, threads: int, tiny_folder: Callable[[str], Path]
) -> None:
    # Some read their prompts while others decode, and most evict; that must change nothing.
    vocab = tiny.CONFIGS[name][0]["vocab_size"]
    lengths = [1, 3, 20, 66, 300, 150]
    prompts = [[(5 * i * i + 3 * i + n) % vocab for i in range(n)] for n in lengths]
    with sinkstream.load(
        tiny_folder(name), sinks=4, window=28, max_sequences=4, prefill_chunk=64, threads=threads
    ) as model:
        alone = [run(model, prompt, 120, seed=seed) for seed, prompt in enumerate(prompts)]
        streams = [
            model.stream(
                prompt,
                max_tokens=120,
                ignore_eos=True,
                logprobs=1,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                min_p=0.0,
                seed=seed,
            )
            for seed, prompt in enumerate(prompts)
        ]
        together = [stream.result() for stream in streams]
    assert [(list(r.token_ids), list(r.logprobs)) for r in together] == alone


@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_seed_decides_the_stream(name: str, tiny_folder: Callable[[str], Path]) -> None:
    with sinkstream.load(tiny_folder(name), window=30) as model:
        one, two = (run(model, [3, 5, 8], 60, seed=seed)[0] for seed in (1, 2))
        assert one != two
        assert run(model, [3, 5, 8], 60, seed=1)[0] == one


@pytest.mark.parametrize(
    ("capacity", "tokens"),
    [
        (36, 350),
        *(pytest.param(capacity, 500, marks=pytest.mark.full) for capacity in (256, 1024)),
        *(pytest.param(capacity, 2000, marks=pytest.mark.slow) for capacity in (256, 1024)),
    ],
)
def test_smollm2_writes_the_same_for_any_threads_and_prefill_chunk(
    capacity: int, tokens: int, smollm2: Path, prose: str
) -> None:
    outcomes: list[Outcome] = []
    for threads, chunk in [(2, None), (1, 37)]:
        with sinkstream.load(
            smollm2, sinks=4, window=capacity - 4, threads=threads, prefill_chunk=chunk
        ) as model:
            # Most tokens are generated while evicting.
            prompt = model.tokenizer.encode(prose).ids[: max(40, capacity - 50)]
            outcomes.append(run(model, prompt, tokens))
            if threads == 2 and capacity == 256:
                outcomes.append(run(model, prompt, tokens))
    assert all(outcome == outcomes[0] for outcome in outcomes)
