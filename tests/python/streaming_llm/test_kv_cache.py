"""The original's interface: legacy tuples are sliced as before, and its loops run unchanged."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from sinkstream.errors import InvalidArgument
from sinkstream.streaming_llm import disable_streaming_llm, enable_streaming_llm
from sinkstream.streaming_llm.kv_cache import StartRecentKVCache
from sinkstream.streaming_llm.pos_shift.modify_falcon import enable_falcon_pos_shift_attention
from sinkstream.streaming_llm.pos_shift.modify_gpt_neox import enable_gpt_neox_pos_shift_attention
from sinkstream.streaming_llm.pos_shift.modify_llama import enable_llama_pos_shift_attention
from tests.python.streaming_llm.models import VOCAB, Oracle, build
from tests.python.streaming_llm.test_protocol import TOLERANCE
from tests.reference.streaming import Streaming

DIMS = [(1, 1), (2, 2), (3, 2)]


def numbered(length: int, k_dim: int, v_dim: int) -> Any:
    """Return two layers in which every key and value is its index."""

    def tensor(dim: int, layer: int) -> torch.Tensor:
        shape = [2, 3, 5, 7]
        shape[dim] = length
        index = torch.arange(length) + 1000 * layer
        return index.reshape([-1 if d == dim else 1 for d in range(4)]).expand(shape)

    return tuple((tensor(k_dim, layer), tensor(v_dim, layer)) for layer in range(2))


def indices(past: Any, k_dim: int, v_dim: int) -> list[int]:
    """Return the indices, after checking that they agree everywhere."""
    found = [
        (x.movedim(dim, 0).flatten(1)[:, 0] - 1000 * layer).tolist()
        for layer, pair in enumerate(past)
        for x, dim in zip(pair, (k_dim, v_dim), strict=True)
    ]
    assert all(row == found[0] for row in found)
    return list(found[0])


@pytest.mark.parametrize(("k_dim", "v_dim"), DIMS)
@pytest.mark.parametrize("length", [1, 9, 10, 11, 30])
def test_legacy_tuples_keep_the_first_and_the_last(length: int, k_dim: int, v_dim: int) -> None:
    kv_cache = StartRecentKVCache(3, 7, k_dim, v_dim)
    past = kv_cache(numbered(length, k_dim, v_dim))
    every = list(range(length))
    assert indices(past, k_dim, v_dim) == (every if length <= 10 else every[:3] + every[-7:])


@pytest.mark.parametrize(("k_dim", "v_dim"), DIMS)
@pytest.mark.parametrize(("count", "kept"), [(0, 7), (2, 5), (6, 1), (7, 0), (50, 0)])
def test_legacy_tuples_make_room(count: int, kept: int, k_dim: int, v_dim: int) -> None:
    kv_cache = StartRecentKVCache(3, 7, k_dim, v_dim)
    past = kv_cache.evict_for_space(numbered(10, k_dim, v_dim), count)
    assert indices(past, k_dim, v_dim) == [0, 1, 2, *range(10 - kept, 10)]


def test_legacy_tuples_with_room_stay_as_they_are() -> None:
    kv_cache, past = StartRecentKVCache(3, 7, 2, 2), numbered(6, 2, 2)
    assert kv_cache(past) is past
    assert kv_cache.evict_for_space(past, 4) is past
    assert indices(kv_cache.evict_for_space(past, 5), 2, 2) == [0, 1, 2, 4, 5]


@pytest.mark.parametrize(("start", "end"), [(0, 2), (3, 3), (2, 9), (4, 12), (0, 12)])
def test_legacy_tuples_lose_a_range(start: int, end: int) -> None:
    past = StartRecentKVCache(3, 7, 2, 2).evict_range(numbered(12, 2, 2), start, end)
    assert indices(past, 2, 2) == [*range(start), *range(end, 12)]


def test_no_cache_yet_stays_none() -> None:
    kv_cache = StartRecentKVCache(3, 7, 2, 2)
    assert kv_cache(None) is None
    assert kv_cache.evict_for_space(None, 3) is None
    assert kv_cache.evict_range(None, 1, 2) is None


@pytest.mark.parametrize("prompt", [1, 9, 21, 60])
@pytest.mark.parametrize(
    ("name", "enable"),
    [
        ("llama", enable_llama_pos_shift_attention),
        ("qwen3", enable_llama_pos_shift_attention),
        ("gpt_neox", enable_gpt_neox_pos_shift_attention),
        ("falcon", enable_falcon_pos_shift_attention),
    ],
)
def test_loops_written_for_the_original_run_on_unchanged(
    name: str, enable: Any, prompt: int
) -> None:
    model = build(name)
    oracle = Streaming(Oracle(model), 4, 16)
    ids = torch.randint(0, VOCAB, (1, prompt), generator=torch.Generator().manual_seed(prompt))

    kv_cache = StartRecentKVCache(start_size=4, recent_size=16, k_seq_dim=2, v_seq_dim=2)
    enable(model)
    past = None
    for step in range(60):
        with torch.no_grad():
            outputs = model(ids, past_key_values=past, use_cache=True)
        past = kv_cache(outputs.past_key_values)
        expected = oracle.feed_at_once(ids[0].tolist())[-1]
        oracle.evict()
        np.testing.assert_allclose(outputs.logits[0, -1], expected, rtol=0, atol=TOLERANCE)
        ids = torch.tensor([[(int(expected.argmax()) + step) % VOCAB]])
    assert past is not None
    assert past.live_tokens == 20


def test_a_loop_with_a_turn_of_the_original_runs_on_unchanged() -> None:
    model = build("llama")
    kv_cache, oracle = enable_streaming_llm(model, 4, 16), Streaming(Oracle(model), 4, 16)
    past: Any = None
    for turn in ([1, 2, 3, 4, 5, 6], [9] * 16, [7, 8]):
        past = kv_cache.evict_for_space(past, len(turn))
        oracle.evict_for_space(len(turn))
        with torch.no_grad():
            outputs = model(torch.tensor([turn]), past_key_values=past, use_cache=True)
        np.testing.assert_allclose(
            outputs.logits[0], oracle.feed_at_once(turn), rtol=0, atol=TOLERANCE
        )
        past = kv_cache(outputs.past_key_values)
        oracle.evict()


@pytest.mark.parametrize("name", ["falcon", "gpt_neox", "llama"])
def test_a_model_that_is_cast_after_it_was_enabled_streams_as_one_cast_before(name: str) -> None:
    ids = torch.randint(0, VOCAB, (1, 60), generator=torch.Generator().manual_seed(7))

    def cast(model: Any) -> Any:
        frequencies = model.base_model.rotary_emb.inv_freq.clone()
        model.to(torch.bfloat16).float()
        assert not torch.equal(model.base_model.rotary_emb.inv_freq, frequencies)
        return model

    def stream(model: Any, kv_cache: StartRecentKVCache) -> list[torch.Tensor]:
        """Read through `new_cache`, through `read` only, and from an adopted cache."""
        with torch.no_grad():
            taken = kv_cache(model(ids, use_cache=True).past_key_values)
            adopted = model(ids[:, :1], past_key_values=taken).logits
        made = kv_cache.read(ids, kv_cache.new_cache(), logits_to_keep=0)[0]
        return [made, kv_cache.read(ids, logits_to_keep=0)[0], adopted]

    late = build(name)
    kv_cache = enable_streaming_llm(late, 4, 16)
    kv_cache.new_cache()  # nothing made before the cast may be reused
    late_logits = stream(cast(late), kv_cache)
    early = cast(build(name))
    early_logits = stream(early, enable_streaming_llm(early, 4, 16))
    for found, expected in zip(late_logits, early_logits, strict=True):
        assert torch.equal(found, expected)


def test_an_object_without_a_model_needs_exactly_one_that_is_enabled() -> None:
    kv_cache, model = StartRecentKVCache(4, 16), build("llama")
    with torch.no_grad():
        past = model(torch.tensor([[1, 2]]), use_cache=True).past_key_values
    with pytest.raises(InvalidArgument, match=r"exactly one model must be enabled .* but 0 are"):
        kv_cache(past)
    enable_llama_pos_shift_attention(model)
    other = build("mistral")
    enable_llama_pos_shift_attention(other)
    with pytest.raises(InvalidArgument, match="but 2 are"):
        kv_cache(past)
    disable_streaming_llm(other)
    assert kv_cache(past).seen_tokens == 2


def test_a_cache_that_lost_tokens_is_not_taken_over() -> None:
    model = build("mistral", sliding_window=21)
    kv_cache = enable_streaming_llm(model, 4, 16)
    with torch.no_grad():
        past = model(torch.zeros(1, 40, dtype=torch.long), use_cache=True).past_key_values
    with pytest.raises(InvalidArgument, match="layer 0 evicted some"):
        kv_cache(past)


@pytest.mark.parametrize(
    ("enable", "name", "sentence"),
    [
        (
            enable_llama_pos_shift_attention,
            "falcon",
            'must be of model_type llama, mistral, qwen2, qwen3, but is "falcon".',
        ),
        (enable_gpt_neox_pos_shift_attention, "llama", 'model_type gpt_neox, but is "llama".'),
        (enable_falcon_pos_shift_attention, "mpt", 'model_type falcon, but is "mpt".'),
    ],
)
def test_each_pos_shift_function_takes_its_own_families(
    enable: Any, name: str, sentence: str
) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(sentence)):
        enable(build(name))
