"""Results do not depend, bit for bit, on how they were computed."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch

import sinkstream
from tests.gpu.bench.sizes import LONG_WINDOW
from tests.gpu.conftest import Load
from tests.gpu.sizes import EXPERTS, IS_REHEARSAL, KINDS, SINKS, SIZES
from tests.gpu.streams import SAMPLED, bits, prompt


@pytest.mark.parametrize("kv_dtype", SIZES.cache_types)
def test_decode_equals_prefill_in_chunks(load: Load, kv_dtype: str) -> None:
    ids = torch.tensor([prompt(SIZES.text)])
    with load(kv_dtype=kv_dtype, prefill_chunk=2 * SIZES.chunk) as model:
        whole = model.forward(ids, cache := model.new_cache())
        assert cache.evicted == SIZES.text - SINKS - SIZES.window
        for size in (1, 7) if IS_REHEARSAL else (1, 7, 16, 64, 200):
            cache = model.new_cache()
            parts = [model.forward(part, cache) for part in ids.split(size, dim=1)]
            assert torch.equal(torch.cat(parts, dim=1), whole), size


@pytest.mark.parametrize("family", EXPERTS)
def test_experts_give_a_row_the_same_bits_in_any_chunk_and_company(
    load: Load, tmp_path: Path, family: str
) -> None:
    pytest.importorskip("transformers")
    from tests.data.family_models import save_family

    save_family(family, tmp_path)
    ids = torch.tensor([prompt(SIZES.text)])
    with load(tmp_path, prefill_chunk=2 * SIZES.chunk, max_sequences=9) as model:
        whole = model.forward(ids, model.new_cache())
        for size in (7,) if IS_REHEARSAL else (1, 7, 64, 200):
            cache = model.new_cache()
            parts = [model.forward(part, cache) for part in ids.split(size, dim=1)]
            assert torch.equal(torch.cat(parts, dim=1), whole), size
        alone = bits(model.stream(prompt(9), **SAMPLED, seed=3).result())
        others = [model.stream(prompt(5 + i, i), **SAMPLED, seed=i) for i in range(8)]
        assert bits(model.stream(prompt(9), **SAMPLED, seed=3).result()) == alone
        for other in others:
            other.close()


@pytest.mark.parametrize("kind", KINDS[:1] if IS_REHEARSAL else KINDS)
def test_many_rows_have_the_bits_of_few(load: Load, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("gguf")
    from benchmarks.random_gguf import write

    # With 9 and 24 tiles along K, each of the four rounds has several, and each stage is reused.
    path = write("layer", kind, tmp_path)
    ids = torch.tensor([prompt(70 if IS_REHEARSAL else 600)])
    with load(path, prefill_chunk=300) as model:
        whole = model.forward(ids, model.new_cache())
        for size in (40,) if IS_REHEARSAL else (1, 40, 64, 65, 130):
            cache = model.new_cache()
            parts = [model.forward(part, cache) for part in ids.split(size, dim=1)]
            assert torch.equal(torch.cat(parts, dim=1), whole), size


@pytest.mark.parametrize("kv_dtype", SIZES.cache_types)
def test_the_size_of_chunks_changes_no_reply(load: Load, kv_dtype: str) -> None:
    results = []
    for chunk in (3, 16) if IS_REHEARSAL else (1, 16, 100, 512):
        with load(prefill_chunk=chunk, kv_dtype=kv_dtype) as model:
            stream = model.stream(prompt(SIZES.text // 2), **SAMPLED, seed=4)
            results.append(bits(stream.result()))
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("kv_dtype", SIZES.cache_types)
def test_a_stream_is_the_same_alone_and_in_a_batch(load: Load, kv_dtype: str) -> None:
    tested = prompt(SIZES.window // 2)
    with load(kv_dtype=kv_dtype, max_sequences=1 + max(SIZES.neighbours)) as model:
        alone = model.stream(tested, **SAMPLED, seed=3).result()
        again = model.stream(tested, **SAMPLED, seed=3).result()
        assert bits(again) == bits(alone)
        if not IS_REHEARSAL:
            assert alone.stats.evicted_tokens > SIZES.window
        for count in SIZES.neighbours:
            others = [
                model.stream(prompt(5 + 3 * i, i + 1), **SAMPLED, seed=100 + i)
                for i in range(count)
            ]
            among = model.stream(tested, **SAMPLED, seed=3).result()
            for other in others:
                other.close()
            assert bits(among) == bits(alone), count


def test_guesses_change_no_reply(load: Load) -> None:
    """The second time, everything was said before."""
    penalized = {**SAMPLED, "frequency_penalty": 0.3, "repetition_penalty": 1.1}
    results, accepted = [], 0
    for speculation in (0, 20):
        with load(speculation=speculation, max_sequences=3) as model:
            for options in (SAMPLED, penalized) * 2:
                streams = [model.stream(prompt(9, i), **options, seed=i) for i in range(3)]
                results.append([bits(stream.result()) for stream in streams])
            accepted = model.stats()["accepted_tokens"]
    assert results[4:] == results[:4]
    assert accepted > SIZES.reply


@pytest.mark.parametrize("count", (3,) if IS_REHEARSAL else (16, 17, 32))
def test_streams_of_unequal_length_are_each_the_same_alone(load: Load, count: int) -> None:
    """The longest is past the window; attention changes its kernel at 17 rows."""
    options = {**SAMPLED, "max_tokens": SIZES.reply // 4}
    lengths = [1 + 2 * SIZES.window * i // (count - 1) for i in range(count)]
    with load(max_sequences=count) as model:
        alone = [
            bits(model.stream(prompt(length, i), **options, seed=i).result())
            for i, length in enumerate(lengths)
        ]
        streams = [
            model.stream(prompt(length, i), **options, seed=i) for i, length in enumerate(lengths)
        ]
        assert [bits(stream.result()) for stream in streams] == alone


def test_a_prompt_next_to_a_stream_changes_neither(load: Load) -> None:
    text = prompt(SIZES.text, 5)
    with load(max_sequences=2) as model:
        decoded = bits(model.stream(prompt(9), **SAMPLED, seed=1).result())
        read = bits(model.stream(text, **SAMPLED, seed=2).result())
        stream = model.stream(prompt(9), **SAMPLED, seed=1)
        while not stream.stats.generated_tokens:
            time.sleep(0.001)
        assert bits(model.stream(text, **SAMPLED, seed=2).result()) == read
        assert bits(stream.result()) == decoded


@pytest.mark.filterwarnings("ignore:load. sinks")
def test_a_window_that_never_fills_changes_no_bit(load: Load) -> None:
    options = {**SAMPLED, "max_tokens": SIZES.reply // 4, "seed": 3}
    results = []
    for window in (2 * SIZES.text, 4 * SIZES.text if IS_REHEARSAL else LONG_WINDOW):
        with load(window=window, max_sequences=1) as model:
            results.append(bits(model.stream(prompt(SIZES.text), **options).result()))
    assert results[0] == results[1]


def test_the_same_request_gives_the_same_bits_in_another_load(load: Load) -> None:
    results = []
    for _ in range(2):
        with load() as model:
            results.append(bits(model.stream(prompt(9), **SAMPLED, seed=8).result()))
    assert results[0] == results[1]


def test_two_models_share_a_gpu(load: Load) -> None:
    def run(model: sinkstream.Model, into: list[object]) -> None:
        for seed in range(1 if IS_REHEARSAL else 8):
            into.append(bits(model.stream(prompt(9, seed), **SAMPLED, seed=seed).result()))

    with load("llama") as one, load("qwen3") as other:
        alone: list[list[object]] = [[], []]
        for model, into in zip((one, other), alone, strict=True):
            run(model, into)
        together: list[list[object]] = [[], []]
        threads = [
            threading.Thread(target=run, args=pair)
            for pair in zip((one, other), together, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert together == alone
    assert alone[0] != alone[1]


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_penalties_on_the_gpu_are_those_of_the_host(load: Load, temperature: float) -> None:
    options = {
        **SAMPLED,
        "temperature": temperature,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.1,
        "seed": 6,
    }
    with load() as model:
        on_gpu = model.stream(prompt(SIZES.window), **options).result()
        # With alternatives the host samples, from the same logits.
        on_host = model.stream(prompt(SIZES.window), **options, logprobs=1).result()
        if not IS_REHEARSAL:
            assert on_gpu.stats.evicted_tokens > SIZES.window
    assert on_gpu.token_ids == on_host.token_ids
