"""The loops of the original's two scripts, literally, over the caches that models return today."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from transformers.cache_utils import DynamicCache

from sinkstream.errors import InvalidArgument
from sinkstream.streaming_llm import StartRecentKVCache, enable_streaming_llm
from tests.python.lanes import cases
from tests.python.streaming_llm.models import FEW, VOCAB, Oracle, build
from tests.python.streaming_llm.test_protocol import TOLERANCE
from tests.reference.streaming import Streaming

FAMILIES = ["falcon", "falcon-alibi", "gpt_neox", "llama", "mistral", "mpt", "qwen2", "qwen3"]


@torch.no_grad()
def greedy_generate(model: Any, input_ids: Any, past_key_values: Any, max_gen_len: int) -> Any:
    """Answer as run_streaming_llama.py does, without its tokenizer."""
    outputs = model(input_ids=input_ids, past_key_values=past_key_values, use_cache=True)
    past_key_values = outputs.past_key_values
    pred_token_idx = outputs.logits[:, -1, :].argmax(dim=-1).unsqueeze(1)
    generated_ids = [pred_token_idx.item()]
    for _ in range(max_gen_len - 1):
        outputs = model(input_ids=pred_token_idx, past_key_values=past_key_values, use_cache=True)
        past_key_values = outputs.past_key_values
        pred_token_idx = outputs.logits[:, -1, :].argmax(dim=-1).unsqueeze(1)
        generated_ids.append(pred_token_idx.item())
    return past_key_values, generated_ids


def reference_turn(oracle: Streaming, ids: list[int], max_gen_len: int) -> list[int]:
    """Answer with the reference: a prompt in one forward pass, then token by token."""
    logits = oracle.feed_at_once(ids)[-1]
    answer = [int(logits.argmax())]
    while len(answer) < max_gen_len:
        answer.append(int(oracle.feed_at_once(answer[-1:])[-1].argmax()))
    return answer


@pytest.mark.parametrize("name", cases(FAMILIES, always=FEW.__contains__))
def test_eight_turns_of_the_chat_loop_are_the_references(name: str) -> None:
    model = build(name)
    kv_cache, oracle = enable_streaming_llm(model, 4, 32), Streaming(Oracle(model), 4, 32)
    draw = random.Random(name)
    past: Any = None
    answers = []
    for turn in range(8):
        ids = [draw.randrange(VOCAB) for _ in range(draw.randrange(1, 13))]
        past = kv_cache.evict_for_space(past, len(ids) + 20)
        oracle.evict_for_space(len(ids) + 20)
        past, answer = greedy_generate(model, torch.tensor([ids]), past, 20)
        assert answer == reference_turn(oracle, ids, 20)
        assert oracle.cached <= 36
        if turn:
            assert past.live_tokens == oracle.cached
        answers.append(tuple(answer))
    assert past.seen_tokens > 3 * 36
    assert len(set(answers)) > 4


@pytest.mark.parametrize("name", ["gpt_neox", "llama", "mpt"])
def test_a_first_turn_beyond_the_bound_is_cut_before_the_second(name: str) -> None:
    model = build(name)
    kv_cache, oracle = enable_streaming_llm(model, 4, 24), Streaming(Oracle(model), 4, 24)
    ids = list(range(50))
    past, answer = greedy_generate(model, torch.tensor([ids]), None, 10)  # dense, as there
    assert answer == reference_turn(oracle, ids, 10)
    for _ in range(3):
        past = kv_cache.evict_for_space(past, 3 + 8)
        oracle.evict_for_space(3 + 8)
        past, answer = greedy_generate(model, torch.tensor([[7, 8, 9]]), past, 8)
        assert answer == reference_turn(oracle, [7, 8, 9], 8)
        assert past.live_tokens == oracle.cached <= 28


@pytest.mark.parametrize("count", [0, 1, 8, 23, 24, 25, 1000])
@pytest.mark.parametrize("length", [2, 4, 10, 28, 29, 60])
def test_room_in_a_models_own_cache_is_the_references(length: int, count: int) -> None:
    model = build("llama")
    kv_cache, oracle = enable_streaming_llm(model, 4, 24), Streaming(Oracle(model), 4, 24)
    ids = list(range(length))
    with torch.no_grad():
        past = model(torch.tensor([ids]), use_cache=True).past_key_values
        oracle.feed_at_once(ids)
        past = kv_cache.evict_for_space(past, count)
        oracle.evict_for_space(count)
        assert past.live_tokens == oracle.cached
        logits = model(torch.tensor([[9]]), past_key_values=past).logits[0]
    np.testing.assert_allclose(logits, oracle.feed_at_once([9]), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(("start", "end"), [(4, 7), (4, 20), (6, 19), (18, 20), (5, 5)])
def test_a_range_of_a_models_own_cache_is_cut_as_in_the_reference(start: int, end: int) -> None:
    model = build("llama")
    kv_cache, oracle = enable_streaming_llm(model, 4, 24), Streaming(Oracle(model), 4, 24)
    with torch.no_grad():
        past = model(torch.arange(20)[None], use_cache=True).past_key_values
        oracle.feed_at_once(range(20))
        past = kv_cache.evict_range(past, start, end)
        oracle.evict_range(start, end)
        assert past.live_tokens == oracle.cached
        for token in range(40):
            logits = model(torch.tensor([[token]]), past_key_values=past).logits[0]
            expected = oracle.feed([token])
            np.testing.assert_allclose(logits, expected, rtol=0, atol=TOLERANCE)


def test_ranks_count_all_tokens_of_a_models_own_cache_even_beyond_the_bound() -> None:
    """The cut comes first, and then the eviction: ranks must not name other tokens."""
    model = build("llama")
    kv_cache, oracle = enable_streaming_llm(model, 4, 24), Streaming(Oracle(model), 4, 24)
    with torch.no_grad():
        past = model(torch.arange(60)[None], use_cache=True).past_key_values
        oracle.feed_at_once(range(60))
        past = kv_cache.evict_range(past, 50, 55)
        oracle.evict_range(50, 55)
        oracle.evict()
        assert past.live_tokens == 28
        logits = model(torch.tensor([[9]]), past_key_values=past).logits[0]
    np.testing.assert_allclose(logits, oracle.feed([9]), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("has_config", [False, True])
def test_a_cache_in_which_nothing_has_been_read_becomes_a_new_one(has_config: bool) -> None:
    model = build("llama")
    kv_cache = enable_streaming_llm(model, 4, 24)
    for empty in (kv_cache, lambda past: kv_cache.evict_for_space(past, 9)):
        past = empty(DynamicCache(config=model.config) if has_config else DynamicCache())
        with torch.no_grad():
            for token in range(60):
                past = model(torch.tensor([[token]]), past_key_values=past).past_key_values
        assert (past.seen_tokens, past.live_tokens) == (60, 28)


def test_indices_stay_small_in_a_loop_that_only_makes_room() -> None:
    """Transformers computes angles in float32: the chat loop renumbers where `__call__` does."""
    model = build("llama")
    kv_cache = enable_streaming_llm(model, 4, 24)
    past: Any = None
    with torch.no_grad():
        for _ in range(40):
            past = kv_cache.evict_for_space(past, 10)
            past = model(torch.arange(10)[None], past_key_values=past).past_key_values
    assert past.seen_tokens == 400
    assert past.get_seq_length() < 3 * 28


@pytest.mark.parametrize("past", [7, "cache", [], [3], ((torch.zeros(1, 2, 3, 4),),)])
def test_anything_else_is_refused_in_a_sentence(past: Any) -> None:
    kv_cache = StartRecentKVCache(4, 24)
    for call in (
        kv_cache,
        lambda past: kv_cache.evict_for_space(past, 1),
        lambda past: kv_cache.evict_range(past, 1, 2),
    ):
        with pytest.raises(TypeError, match=r"`past` must be a cache, pairs of tensors or None"):
            call(past)


def test_the_object_shows_its_sizes() -> None:
    assert repr(StartRecentKVCache(4, 24)) == "StartRecentKVCache(start_size=4, recent_size=24)"


def test_a_cache_of_another_model_is_refused() -> None:
    kv_cache = enable_streaming_llm(build("llama", num_hidden_layers=3), 4, 24)
    with torch.no_grad():
        past = build("llama")(torch.tensor([[1, 2]]), use_cache=True).past_key_values
    with pytest.raises(InvalidArgument, match="must have the model's 3 layers, but has 2"):
        kv_cache.evict_for_space(past, 1)
