"""Turns of several tokens: making room first, cuts, and prompts longer than the cache."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from sinkstream.errors import InvalidArgument
from sinkstream.streaming_llm import enable_streaming_llm, read_chunks
from tests.python.lanes import cases
from tests.python.streaming_llm.models import FEW, VOCAB, Oracle, build
from tests.python.streaming_llm.test_protocol import TOLERANCE, call
from tests.reference.streaming import Streaming

FAMILIES = ["falcon", "falcon-alibi", "gpt_neox", "llama", "llama-yarn", "mpt", "qwen2", "qwen3"]


def agree(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)
    assert (found.argmax(-1) == expected.argmax(-1)).all()


@pytest.mark.parametrize("name", cases(FAMILIES, always=FEW.__contains__))
def test_turns_with_room_made_before_them_are_those_of_the_protocol(name: str) -> None:
    model = build(name)
    kv_cache = enable_streaming_llm(model, 4, 24)
    cache, oracle = kv_cache.new_cache(), Streaming(Oracle(model), 4, 24)
    draw = random.Random(name)
    for turn in (10, 3, 24, 1, 17, 24, 8):
        ids = [draw.randrange(VOCAB) for _ in range(turn)]
        assert kv_cache.evict_for_space(cache, turn) is cache
        oracle.evict_for_space(turn)
        agree(call(model, cache, ids), oracle.feed_at_once(ids))
        assert kv_cache(cache) is cache
        oracle.evict()
        for _ in range(30):  # the answer, longer than the window
            token = draw.randrange(VOCAB)
            agree(call(model, cache, [token]), oracle.feed([token]))


@pytest.mark.parametrize("count", [0, 1, 23, 24, 25, 100])
def test_room_is_made_only_where_it_lacks_and_never_among_sinks(count: int) -> None:
    model = build("llama")
    kv_cache = enable_streaming_llm(model, 4, 24)
    cache, oracle = kv_cache.new_cache(), Streaming(Oracle(model), 4, 24)
    for token in range(17):
        call(model, cache, [token])
        oracle.feed([token])
    kv_cache.evict_for_space(cache, count)
    oracle.evict_for_space(count)
    agree(call(model, cache, [7]), oracle.feed([7]))
    assert cache.live_tokens >= min(4 + 1, 17)


@pytest.mark.parametrize(
    "name", cases(["falcon", "gpt_neox", "llama", "llama-yarn", "mpt"], always=FEW.__contains__)
)
def test_cuts_anywhere_in_the_window_are_those_of_the_protocol(name: str) -> None:
    model = build(name)
    kv_cache = enable_streaming_llm(model, 4, 20)
    cache, oracle = kv_cache.new_cache(), Streaming(Oracle(model), 4, 20)
    draw = random.Random(name)
    for start, end in ((4, 7), (10, 11), (6, 24), (4, 24), (5, 5), (20, 24), (8, 12), (7, 9)):
        for _ in range(25):
            token = draw.randrange(VOCAB)
            agree(call(model, cache, [token]), oracle.feed([token]))
        assert kv_cache.evict_range(cache, start, end) is cache
        oracle.evict_range(start, end)
        assert cache.live_tokens == 24 - (end - start)


@pytest.mark.parametrize("name", cases(FAMILIES, always=FEW.__contains__))
def test_every_token_of_a_prompt_of_ten_caches_is_that_of_the_protocol(name: str) -> None:
    model = build(name)
    kv_cache = enable_streaming_llm(model, 4, 16)
    oracle = Streaming(Oracle(model), 4, 16)
    ids = torch.randint(0, VOCAB, (1, 210), generator=torch.Generator().manual_seed(5))
    expected = oracle.feed(ids[0].tolist())
    logits, cache = kv_cache.read(ids, logits_to_keep=0)
    agree(logits[0].numpy(), expected)
    assert (cache.seen_tokens, cache.live_tokens) == (210, 20)
    agree(call(model, cache, [9]), oracle.feed([9]))  # and so is what follows


@pytest.mark.parametrize("chunk", [2, 6, 64])
@pytest.mark.parametrize("start_size", [0, 1, 5])
def test_the_length_of_chunks_changes_nothing(
    start_size: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_chunks, "CHUNK", chunk)
    model = build("qwen3")
    kv_cache = enable_streaming_llm(model, start_size, 11)
    oracle = Streaming(Oracle(model), start_size, 11)
    ids = torch.randint(0, VOCAB, (1, 90), generator=torch.Generator().manual_seed(chunk))
    expected = oracle.feed(ids[0].tolist())
    first, cache = kv_cache.read(ids[:, :37], logits_to_keep=0)
    second, _ = kv_cache.read(ids[:, 37:], cache, logits_to_keep=0)
    agree(torch.cat([first, second], dim=1)[0].numpy(), expected)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["falcon", "llama"])
def test_long_prompts_are_right_with_both_of_transformers_attentions(
    name: str, attention: str
) -> None:
    model = build(name, attn_implementation=attention)
    oracle = Streaming(Oracle(model), 4, 16)
    ids = torch.randint(0, VOCAB, (1, 70), generator=torch.Generator().manual_seed(8))
    expected = oracle.feed(ids[0].tolist())
    logits, _ = enable_streaming_llm(model, 4, 16).read(ids, logits_to_keep=0)
    agree(logits[0].numpy(), expected)


def test_rows_are_read_together_as_they_are_alone() -> None:
    model = build("llama")
    kv_cache = enable_streaming_llm(model, 4, 16)
    ids = torch.randint(0, VOCAB, (3, 80), generator=torch.Generator().manual_seed(2))
    together, _ = kv_cache.read(ids, logits_to_keep=5)
    assert together.shape == (3, 5, VOCAB)
    for row in range(3):
        alone, _ = kv_cache.read(ids[row : row + 1], logits_to_keep=5)
        agree(together[row].numpy(), alone[0].numpy())


@pytest.mark.parametrize(("tokens", "seen"), [(22, 0), (2, 30), (5, 18)])
def test_a_forward_that_would_evict_between_its_tokens_is_refused_and_changes_nothing(
    tokens: int, seen: int
) -> None:
    model = build("llama")
    kv_cache = enable_streaming_llm(model, 4, 16)
    cache, oracle = kv_cache.new_cache(), Streaming(Oracle(model), 4, 16)
    for token in range(seen):
        call(model, cache, [token])
        oracle.feed([token])
    says = rf"reading {tokens} tokens into a cache with {min(seen, 20)} live"
    with pytest.raises(InvalidArgument, match=says):
        call(model, cache, list(range(tokens)))
    agree(call(model, cache, [3]), oracle.feed([3]))


def test_the_longest_forward_that_evicts_nothing_between_its_tokens_is_taken() -> None:
    model = build("llama")
    cache = enable_streaming_llm(model, 4, 16).new_cache()
    oracle: Any = Streaming(Oracle(model), 4, 16)
    agree(call(model, cache, list(range(21))), oracle.feed_at_once(range(21)))
    oracle.evict()
    agree(call(model, cache, [3]), oracle.feed([3]))
