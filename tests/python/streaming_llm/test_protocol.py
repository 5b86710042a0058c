"""Token by token, transformers models with our cache match the literal protocol."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from sinkstream.streaming_llm import StreamingCache, enable_streaming_llm
from tests.python.streaming_llm.models import VOCAB, Oracle, build, with_exact_angles
from tests.reference.streaming import Streaming

TOLERANCE = 1e-4  # for logits of a few units, in float32


def call(model: Any, cache: StreamingCache, ids: list[int]) -> np.ndarray:
    with torch.inference_mode():
        logits: np.ndarray = model(torch.tensor([ids]), past_key_values=cache).logits[0].numpy()
    return logits


def compare(name: str, tokens: int, start_size: int, recent_size: int, **fields: Any) -> None:
    """Read a mix of greedy and random tokens; both must agree at every token."""
    model = build(name, **fields)
    cache = enable_streaming_llm(model, start_size, recent_size).new_cache()
    oracle = Streaming(Oracle(model), start_size, recent_size)
    draw = random.Random(name)
    token = draw.randrange(VOCAB)
    for index in range(tokens):
        found, expected = call(model, cache, [token]), oracle.feed([token])
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE, err_msg=f"{index}")
        assert found.argmax() == expected.argmax(), index
        token = draw.randrange(VOCAB) if index % 3 == 0 else int(expected.argmax())
    assert cache.seen_tokens == tokens
    assert cache.live_tokens == min(tokens, start_size + recent_size)
    assert cache.evicted_tokens == tokens - cache.live_tokens


@pytest.mark.parametrize(
    "name", ["falcon", "falcon-alibi", "gpt_neox", "llama", "mistral", "mpt", "qwen2", "qwen3"]
)
def test_ten_caches_of_each_family_are_those_of_the_protocol(name: str) -> None:
    compare(name, 330, start_size=4, recent_size=28)


@pytest.mark.parametrize(
    "name", ["falcon-new", "gpt_neox-sequential", "llama-llama3", "llama-yarn"]
)
def test_variants_of_the_families_are_those_of_the_protocol(name: str) -> None:
    compare(name, 150, start_size=3, recent_size=20)


def errors_of_a_long_stream(model: Any, tokens: int, *, calls: bool) -> np.ndarray:
    """Return the largest error of each token, after checking that all greedy choices agree.

    Args:
        model: A tiny llama.
        tokens: Number of tokens.
        calls: Whether the loop calls `kv_cache(past)` after each forward pass, as in the original.
    """
    kv_cache, oracle = enable_streaming_llm(model, 4, 60), Streaming(Oracle(model), 4, 60)
    cache, draw = kv_cache.new_cache(), random.Random(1)
    token, errors = draw.randrange(VOCAB), []
    for index in range(tokens):
        found, expected = call(model, cache, [token]), oracle.feed([token])
        if calls:
            assert kv_cache(cache) is cache
        errors.append(np.abs(found - expected).max())
        assert found.argmax() == expected.argmax(), index
        token = draw.randrange(VOCAB) if index % 3 == 0 else int(expected.argmax())
    assert (cache.seen_tokens, cache.live_tokens) == (tokens, 64)
    assert cache.evicted_tokens == tokens - 64
    return np.array(errors)


@pytest.mark.slow
def test_3000_tokens_of_llama_are_those_of_the_protocol_and_errors_do_not_grow() -> None:
    errors = errors_of_a_long_stream(build("llama"), 3000, calls=True)
    assert errors.max() < TOLERANCE
    assert errors[2000:].mean() < 1.5 * errors[100:600].mean()


@pytest.mark.slow
def test_without_calls_in_between_only_transformers_angles_keep_errors_from_being_flat() -> None:
    own = errors_of_a_long_stream(build("llama"), 2000, calls=False)
    exact = errors_of_a_long_stream(with_exact_angles(build("llama")), 2000, calls=False)
    assert own.max() < 5 * TOLERANCE
    assert exact.max() < TOLERANCE / 3
    assert exact[1500:].mean() < 1.5 * exact[100:600].mean()


@pytest.mark.parametrize("name", ["gpt_neox", "llama-yarn"])
def test_a_stream_that_is_numbered_anew_is_that_of_the_protocol(name: str) -> None:
    model = build(name)
    kv_cache, oracle = enable_streaming_llm(model, 3, 9), Streaming(Oracle(model), 3, 9)
    cache, indices = kv_cache.new_cache(), set()
    for token in range(90):
        found = call(model, kv_cache(cache), [token])
        np.testing.assert_allclose(found, oracle.feed([token]), rtol=0, atol=TOLERANCE)
        indices.add(cache.get_seq_length())
    assert cache.seen_tokens == 90
    assert max(indices) == 2 * 12  # at most twice the size of the cache


@pytest.mark.parametrize(("start_size", "recent_size"), [(0, 1), (0, 9), (1, 1), (5, 2), (64, 3)])
@pytest.mark.parametrize("name", ["llama", "mpt"])
def test_odd_sizes_are_those_of_the_protocol(name: str, start_size: int, recent_size: int) -> None:
    compare(name, 80, start_size, recent_size)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["falcon", "llama"])
def test_both_of_transformers_attentions_are_those_of_the_protocol(
    name: str, attention: str
) -> None:
    compare(name, 60, 4, 12, attn_implementation=attention)


def test_16_bit_models_keep_their_sinks_bit_for_bit_and_stay_near_the_protocol() -> None:
    model = build("llama").bfloat16()
    cache = enable_streaming_llm(model, 4, 28).new_cache()
    oracle = Streaming(Oracle(model), 4, 28)
    draw = random.Random(3)
    errors = []
    for index in range(400):
        token = draw.randrange(VOCAB)
        with torch.inference_mode():
            logits = model(torch.tensor([[token]]), past_key_values=cache).logits[0, 0].float()
        errors.append(np.abs(logits.numpy() - oracle.feed([token])[0]).mean())
        if index == 3:
            sinks = [layer.sink_keys.clone() for layer in cache.sink_layers]
    for before, layer in zip(sinks, cache.sink_layers, strict=True):
        assert torch.equal(before, layer.sink_keys)
    # The error is the type's rounding, and does not grow with the number of evicted tokens.
    assert np.mean(errors[300:]) < 1.5 * np.mean(errors[40:140])
    assert np.mean(errors) < 0.1


def test_rows_of_equal_length_are_each_what_they_are_alone() -> None:
    model = build("qwen3")
    kv_cache = enable_streaming_llm(model, 4, 12)
    together, ids = kv_cache.new_cache(batch=2), torch.randint(0, VOCAB, (2, 50))
    alone = [kv_cache.new_cache(), kv_cache.new_cache()]
    for t in range(50):
        with torch.inference_mode():
            logits = model(ids[:, t : t + 1], past_key_values=together).logits[:, 0]
        for row in range(2):
            expected = call(model, alone[row], [int(ids[row, t])])[0]
            np.testing.assert_allclose(logits[row].numpy(), expected, rtol=0, atol=TOLERANCE)
