"""Models with a native sliding window: a ring as they were trained, or sinks and window."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from transformers.cache_utils import DynamicSlidingWindowLayer

from sinkstream.errors import InvalidArgument
from sinkstream.streaming_llm import SinkLayer, enable_streaming_llm
from tests.python.streaming_llm.models import VOCAB, Oracle, build
from tests.python.streaming_llm.test_protocol import TOLERANCE, call
from tests.reference.streaming import Streaming

RING, SINKS = DynamicSlidingWindowLayer, SinkLayer
_SLIDING = {"use_sliding_window": True, "max_window_layers": 1}


@pytest.mark.parametrize(
    ("name", "fields", "kinds", "rings"),
    [
        ("mistral", {"sliding_window": 12}, [RING, RING], [12, 12]),
        ("mistral", {"sliding_window": 17}, [RING, RING], [17, 17]),
        ("mistral", {"sliding_window": 21}, [SINKS, SINKS], [None, None]),
        ("mistral", {"sliding_window": 90}, [SINKS, SINKS], [None, None]),
        ("qwen2", {"sliding_window": 12, **_SLIDING}, [SINKS, RING], [None, 12]),
        ("qwen3", {"sliding_window": 40, **_SLIDING}, [SINKS, SINKS], [None, None]),
    ],
)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_each_layer_has_the_window_that_it_was_trained_with(
    name: str,
    fields: dict[str, Any],
    kinds: list[type],
    rings: list[int | None],
    attention: str,
) -> None:
    model = build(name, attn_implementation=attention, **fields)
    kv_cache = enable_streaming_llm(model, 4, 16)
    cache, oracle = kv_cache.new_cache(), Streaming(Oracle(model), 4, 16, rings)
    assert [type(layer) for layer in cache.layers] == kinds
    draw = random.Random(name)
    ids = [draw.randrange(VOCAB) for _ in range(120)]
    expected = oracle.feed(ids)
    found = np.stack([call(model, cache, [token])[0] for token in ids])
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)
    assert cache.seen_tokens == 120
    read, _ = kv_cache.read(torch.tensor([ids]), logits_to_keep=0)
    np.testing.assert_allclose(read[0].numpy(), expected, rtol=0, atol=TOLERANCE)
    out = model.generate(
        **kv_cache.inputs_for_generate(torch.tensor([ids])), max_new_tokens=1, do_sample=False
    )
    assert int(out[0, -1]) == expected[-1].argmax()


@pytest.mark.parametrize("native", [18, 20])
def test_a_window_that_would_hide_sinks_is_refused(native: int) -> None:
    with pytest.raises(InvalidArgument, match="would hide sinks"):
        enable_streaming_llm(build("mistral", sliding_window=native), 4, 16)


def test_cuts_are_refused_if_a_layer_has_no_sinks() -> None:
    model = build("mistral", sliding_window=12)
    kv_cache = enable_streaming_llm(model, 4, 16)
    _, cache = kv_cache.read(torch.zeros(1, 30, dtype=torch.long))
    assert (cache.seen_tokens, cache.live_tokens) == (30, 11)
    with pytest.raises(InvalidArgument, match="every layer must have sinks"):
        kv_cache.evict_range(cache, 5, 7)
