"""After enable_streaming_llm, a generate() without a cache streams, or says why it does not."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers.cache_utils import DynamicCache

from sinkstream.streaming_llm import StreamingCache, disable_streaming_llm, enable_streaming_llm
from sinkstream.streaming_llm.pos_shift.modify_llama import enable_llama_pos_shift_attention
from tests.python.lanes import cases
from tests.python.streaming_llm.models import FEW, Oracle, build
from tests.python.streaming_llm.test_generate import FAMILIES, greedy
from tests.reference.streaming import Streaming

PROMPT = [5, 17, 3, 88, 41, 2, 60]
GREEDY: dict[str, Any] = {"do_sample": False, "return_dict_in_generate": True}


@contextmanager
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("name", cases(FAMILIES, always=FEW.__contains__))
def test_a_plain_generate_streams_the_protocols_tokens(name: str) -> None:
    model = build(name)
    enable_streaming_llm(model, 4, 16)
    with no_warning():
        out = model.generate(torch.tensor([PROMPT]), max_new_tokens=150, **GREEDY)
    assert out.sequences[0, 7:].tolist() == greedy(Streaming(Oracle(model), 4, 16), PROMPT, 150)
    assert isinstance(out.past_key_values, StreamingCache)
    assert (out.past_key_values.seen_tokens, out.past_key_values.live_tokens) == (156, 20)


@pytest.mark.parametrize(("tokens", "kind"), [(14, DynamicCache), (15, StreamingCache)])
def test_what_fits_is_left_to_transformers(tokens: int, kind: type) -> None:
    model = build("llama")
    plain = model.generate(torch.tensor([PROMPT]), max_new_tokens=tokens, **GREEDY)
    enable_streaming_llm(model, 4, 16)
    out = model.generate(torch.tensor([PROMPT]), max_new_tokens=tokens, **GREEDY)
    assert type(out.past_key_values) is kind
    assert torch.equal(out.sequences, plain.sequences)


@pytest.mark.parametrize("name", ["gpt_neox", "llama", "mistral"])
def test_a_long_prompt_is_read_in_one_pass_as_in_the_original(name: str) -> None:
    model = build(name)
    enable_streaming_llm(model, 4, 16)
    ids = list(range(1, 61))  # 0 is padding
    out = model.generate(torch.tensor([ids]), max_new_tokens=40, **GREEDY)
    oracle = Streaming(Oracle(model), 4, 16)
    expected = [int(oracle.feed_at_once(ids)[-1].argmax())]
    oracle.evict()
    while len(expected) < 40:
        expected.append(int(oracle.feed(expected[-1:]).argmax()))
    assert out.sequences[0, 60:].tolist() == expected


def test_a_native_window_keeps_its_rings() -> None:
    model = build("mistral", sliding_window=21)
    enable_streaming_llm(model, 4, 16)
    out = model.generate(torch.tensor([PROMPT]), max_new_tokens=60, **GREEDY)
    assert out.sequences[0, 7:].tolist() == greedy(Streaming(Oracle(model), 4, 16), PROMPT, 60)


@pytest.mark.parametrize("beams", [1, 3])
def test_rows_and_beams_stream_as_with_a_cache_that_was_passed(beams: int) -> None:
    model = build("llama")
    kv_cache = enable_streaming_llm(model, 4, 16)
    ids = torch.tensor([PROMPT, PROMPT[::-1]])
    mask = torch.ones_like(ids)
    options = GREEDY | {"num_beams": beams, "max_new_tokens": 60}
    out = model.generate(ids, attention_mask=mask, **options)
    assert out.past_key_values.live_tokens == 20
    cache = kv_cache.new_cache(batch=2 * beams)
    inputs = kv_cache.inputs_for_generate(ids, cache, attention_mask=mask)
    passed = model.generate(**inputs, **options)
    assert torch.equal(out.sequences[:, 6:], passed.sequences)


def test_padded_rows_stay_dense_and_one_warning_says_what_to_pass() -> None:
    model = build("llama")
    ids = torch.tensor([[0, 0, 5, 17, 3], [9, 2, 71, 30, 8]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    options = GREEDY | {"attention_mask": mask, "max_new_tokens": 40}
    plain = model.generate(ids, **options)
    enable_streaming_llm(model, 4, 16)
    with pytest.warns(UserWarning, match=r"padded rows.*inputs_for_generate") as caught:
        out = model.generate(ids, **options)
    assert len([each for each in caught if "generate:" in str(each.message)]) == 1
    assert torch.equal(out.sequences, plain.sequences)
    with no_warning():
        model.generate(ids, **options)


def test_a_falcon_with_alibi_stays_dense_and_is_told_to_be_called_directly() -> None:
    model = build("falcon-alibi")
    plain = model.generate(torch.tensor([PROMPT]), max_new_tokens=40, **GREEDY)
    enable_streaming_llm(model, 4, 16)
    with pytest.warns(UserWarning, match="Falcon model with ALiBi"):
        out = model.generate(torch.tensor([PROMPT]), max_new_tokens=40, **GREEDY)
    assert torch.equal(out.sequences, plain.sequences)


def test_assisted_generation_takes_tokens_back_and_stays_dense_to_its_end() -> None:
    model, assistant = build("llama"), build("llama", num_hidden_layers=1)
    options = {"max_new_tokens": 40, "do_sample": False, "assistant_model": assistant}
    plain = model.generate(torch.tensor([PROMPT]), **options)
    enable_streaming_llm(assistant, 4, 16)
    assert torch.equal(model.generate(torch.tensor([PROMPT]), **options), plain)
    enable_streaming_llm(model, 4, 16)
    with pytest.warns(UserWarning, match="assisted generation removes recent tokens"):
        assert torch.equal(model.generate(torch.tensor([PROMPT]), **options), plain)


@pytest.mark.parametrize(
    "chosen",
    [
        lambda model: {"past_key_values": DynamicCache(config=model.config)},
        lambda model: {"cache_implementation": "static"},
        lambda model: {"use_cache": False},
    ],
    ids=["passed", "static", "none"],
)
def test_a_cache_that_the_caller_chose_is_used(chosen: Any) -> None:
    model = build("llama")
    options = {"max_new_tokens": 40, "do_sample": False}
    plain = model.generate(torch.tensor([PROMPT]), **options, **chosen(model))
    enable_streaming_llm(model, 4, 16)
    with no_warning():
        out = model.generate(torch.tensor([PROMPT]), **options, **chosen(model))
    assert torch.equal(out, plain)


def test_other_callers_of_the_model_keep_its_own_cache() -> None:
    model = build("llama")
    enable_streaming_llm(model, 4, 16)
    past = None
    with torch.no_grad():
        for token in range(60):
            past = model(torch.tensor([[token]]), past_key_values=past).past_key_values
    assert type(past) is DynamicCache
    assert past.get_seq_length() == 60


def test_only_this_model_streams_and_only_while_it_is_enabled() -> None:
    model = build("llama")
    plain = model.generate(torch.tensor([PROMPT]), max_new_tokens=60, **GREEDY)
    enable_streaming_llm(model, 4, 16)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), build("llama")):
        out = other.generate(torch.tensor([PROMPT]), max_new_tokens=60, **GREEDY)
        assert torch.equal(out.sequences, plain.sequences)
    disable_streaming_llm(model)
    assert not model._forward_pre_hooks
    out = model.generate(torch.tensor([PROMPT]), max_new_tokens=60, **GREEDY)
    assert torch.equal(out.sequences, plain.sequences)


def test_the_last_sizes_apply_and_a_pos_shift_function_changes_none() -> None:
    model = build("llama")
    enable_streaming_llm(model, 4, 16)
    enable_streaming_llm(model, 2, 30)
    enable_llama_pos_shift_attention(model)
    assert len(model._forward_pre_hooks) == 1
    out = model.generate(torch.tensor([PROMPT]), max_new_tokens=60, **GREEDY)
    assert out.past_key_values.live_tokens == 32
