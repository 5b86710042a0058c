"""generate() streams through our cache indefinitely, and the model is not changed."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from sinkstream.errors import InvalidArgument
from sinkstream.streaming_llm import disable_streaming_llm, enable_streaming_llm
from tests.python.lanes import cases
from tests.python.streaming_llm.models import FEW, VOCAB, Oracle, build
from tests.reference.streaming import Streaming

FAMILIES = ["falcon", "gpt_neox", "llama", "mistral", "mpt", "qwen2", "qwen3"]


class Listener:
    """A streamer that records the ids it receives."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        self.ids += value.flatten().tolist()

    def end(self) -> None:
        self.ended = True


def greedy(oracle: Streaming, prompt: list[int], tokens: int) -> list[int]:
    logits = oracle.feed(prompt)[-1]
    chosen = [int(logits.argmax())]
    while len(chosen) < tokens:
        chosen.append(int(oracle.feed(chosen[-1:]).argmax()))
    return chosen


@pytest.mark.parametrize("name", cases(FAMILIES, always=FEW.__contains__))
def test_generate_streams_the_protocols_tokens_far_past_the_cache(name: str) -> None:
    model = build(name)
    cache = enable_streaming_llm(model, 4, 16).new_cache()
    listener, prompt = Listener(), [5, 17, 3, 88, 41, 2, 60]
    out = model.generate(
        torch.tensor([prompt]),
        past_key_values=cache,
        use_cache=True,
        max_new_tokens=150,
        do_sample=False,
        streamer=listener,
    )
    expected = greedy(Streaming(Oracle(model), 4, 16), prompt, 150)
    assert out[0].tolist() == prompt + expected
    assert listener.ids == prompt + expected
    assert listener.ended
    assert (cache.seen_tokens, cache.live_tokens) == (7 + 149, 20)
    assert len(set(expected)) > 5  # it did not just repeat one token


@pytest.mark.parametrize("name", cases(FAMILIES, always=FEW.__contains__))
def test_generate_goes_on_after_a_prompt_longer_than_the_cache(name: str) -> None:
    model = build(name)
    kv_cache = enable_streaming_llm(model, 4, 16)
    ids = torch.randint(0, VOCAB, (1, 100), generator=torch.Generator().manual_seed(3))
    inputs = kv_cache.inputs_for_generate(ids, attention_mask=torch.ones_like(ids))
    out = model.generate(**inputs, max_new_tokens=40, do_sample=False)
    expected = greedy(Streaming(Oracle(model), 4, 16), ids[0].tolist(), 40)
    assert out[0, 1:].tolist() == expected


def test_generate_goes_on_turn_after_turn() -> None:
    model = build("llama")
    kv_cache = enable_streaming_llm(model, 4, 16)
    cache, oracle, unread = kv_cache.new_cache(), Streaming(Oracle(model), 4, 16), []
    for turn in ([4, 9, 21], [77, 5] * 30, [50]):
        ids = torch.tensor([unread + turn])
        inputs = kv_cache.inputs_for_generate(ids, cache)
        out = model.generate(**inputs, max_new_tokens=30, do_sample=False)
        expected = greedy(oracle, ids[0].tolist(), 30)
        assert out[0, 1:].tolist() == expected
        unread = [expected[-1]]


def test_generate_reads_a_long_prompt_by_itself_one_token_at_a_time() -> None:
    model = build("gpt_neox")
    cache = enable_streaming_llm(model, 4, 16).new_cache()
    ids = torch.randint(0, VOCAB, (1, 60), generator=torch.Generator().manual_seed(4))
    out = model.generate(
        ids, past_key_values=cache, max_new_tokens=20, do_sample=False, prefill_chunk_size=1
    )
    expected = greedy(Streaming(Oracle(model), 4, 16), ids[0].tolist(), 20)
    assert out[0, 60:].tolist() == expected


def test_generate_refuses_a_long_prompt_in_one_forward_and_says_what_to_do() -> None:
    model = build("llama")
    cache = enable_streaming_llm(model, 4, 16).new_cache()
    with pytest.raises(InvalidArgument, match=r"kv_cache\.inputs_for_generate"):
        model.generate(torch.zeros(1, 60, dtype=torch.long), past_key_values=cache)


@pytest.mark.parametrize("rows", [1, 2])
def test_beams_stream_as_well(rows: int) -> None:
    model = build("llama")
    kv_cache = enable_streaming_llm(model, 4, 16)
    ids = torch.tensor([[5, 17, 3, 88], [9, 2, 71, 30]])[:rows]
    beams: dict[str, Any] = {"max_new_tokens": 12, "num_beams": 3, "do_sample": False}
    plain = model.generate(ids, **beams)
    mask = torch.ones_like(ids)

    def inputs() -> dict[str, Any]:
        cache = kv_cache.new_cache(batch=3 * rows)
        return kv_cache.inputs_for_generate(ids, cache, attention_mask=mask)

    assert torch.equal(model.generate(**inputs(), **beams), plain[:, 3:])
    long = inputs()
    model.generate(**long, **(beams | {"max_new_tokens": 60}))
    assert long["past_key_values"].live_tokens == 20


def test_rows_of_equal_length_are_generated_as_they_are_alone() -> None:
    model = build("llama")
    kv_cache = enable_streaming_llm(model, 4, 16)
    ids = torch.randint(0, VOCAB, (2, 30), generator=torch.Generator().manual_seed(9))
    inputs = kv_cache.inputs_for_generate(ids, attention_mask=torch.ones_like(ids))
    together = model.generate(**inputs, max_new_tokens=40, do_sample=False)
    for row in range(2):
        expected = greedy(Streaming(Oracle(model), 4, 16), ids[row].tolist(), 40)
        assert together[row, 1:].tolist() == expected


def test_generate_of_a_falcon_with_alibi_is_refused_with_the_reason() -> None:
    model = build("falcon-alibi")
    cache = enable_streaming_llm(model, 4, 16).new_cache()
    with pytest.raises(InvalidArgument, match="keeps extending although the cache does not"):
        model.generate(torch.tensor([[1, 2, 3]]), past_key_values=cache, max_new_tokens=3)


def test_memory_is_bounded_however_long_the_stream_is() -> None:
    model = build("llama")
    cache = enable_streaming_llm(model, 4, 16).new_cache()
    sizes = set()
    with torch.inference_mode():
        for index in range(300):
            model(torch.tensor([[index % VOCAB]]), past_key_values=cache)
            if index > 40:
                layer = cache.sink_layers[0]
                tensors = (layer.keys, layer.values, layer.sink_keys, layer.sink_values)
                sizes.add(sum(x.untyped_storage().nbytes() for x in tensors))
    # The keys and values of the last forward: the window, and one evicted row.
    assert len(sizes) == 1
    assert sizes.pop() <= 2 * 2 * (21 + 4) * 8 * 4


def test_nothing_but_one_hook_is_written_into_the_model() -> None:
    model = build("llama")
    ids = torch.tensor([[5, 17, 3, 88, 41]])
    plain = model.generate(ids, max_new_tokens=30, do_sample=False)
    short = model.generate(ids, max_new_tokens=16, do_sample=False)

    def picture() -> list[Any]:
        return [
            (
                name,
                sorted(vars(module)),
                type(module),
                len(module._forward_hooks) + len(module._forward_pre_hooks),
            )
            for name, module in model.named_modules()
        ]

    before, config = picture(), copy.deepcopy(model.config.to_dict())
    weights = {name: x.clone() for name, x in model.state_dict().items()}
    kv_cache = enable_streaming_llm(model, 4, 16)
    streamed = model.generate(
        ids, past_key_values=kv_cache.new_cache(), max_new_tokens=80, do_sample=False
    )
    assert streamed.shape == (1, 85)
    # The first module is the model itself.
    assert picture() == [(*before[0][:3], before[0][3] + 1), *before[1:]]
    assert model.config.to_dict() == config
    assert all(torch.equal(x, weights[name]) for name, x in model.state_dict().items())
    # Without our cache, attention is plain: as long as the text fits, or the model is not enabled.
    assert torch.equal(model.generate(ids, max_new_tokens=16, do_sample=False), short)
    disable_streaming_llm(model)
    assert picture() == before
    assert torch.equal(model.generate(ids, max_new_tokens=30, do_sample=False), plain)


def test_a_disabled_model_makes_no_more_caches() -> None:
    model = build("llama")
    kv_cache = enable_streaming_llm(model, 4, 16)
    disable_streaming_llm(model)
    with pytest.raises(InvalidArgument, match="but was disabled"):
        kv_cache.new_cache()
    enable_streaming_llm(model, 4, 16)
    assert kv_cache.new_cache().seen_tokens == 0


def test_a_cache_can_be_reset_and_copied() -> None:
    model = build("llama")
    kv_cache = enable_streaming_llm(model, 4, 16)
    ids = torch.randint(0, VOCAB, (1, 70), generator=torch.Generator().manual_seed(6))
    first, cache = kv_cache.read(ids)
    twin = copy.deepcopy(cache)
    np.testing.assert_array_equal(kv_cache.read(ids, cache)[0], kv_cache.read(ids, twin)[0])
    cache.reset()
    assert cache.seen_tokens == 0
    np.testing.assert_array_equal(kv_cache.read(ids, cache)[0], first)
