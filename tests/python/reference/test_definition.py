"""The definition: compared with transformers where nothing is evicted, and with itself."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers

from tests.data import tiny
from tests.reference.attention import Scores, alibi, attend, attend_one
from tests.reference.hugging_face import from_hugging_face
from tests.reference.rope import Array, Rope
from tests.reference.streaming import Streaming

TOKENS, HEADS, KV_HEADS, HEAD_DIM = 9, 4, 2, 8
UNTURNED = Rope(np.zeros(0))


@pytest.fixture
def parts() -> tuple[Array, Array, Array]:
    draw = np.random.default_rng(11)
    queries = draw.normal(size=(TOKENS, HEADS, HEAD_DIM)) * 2
    keys, values = draw.normal(size=(2, TOKENS, KV_HEADS, HEAD_DIM))
    return queries, keys, values


def as_torch(part: Array) -> torch.Tensor:
    """Return [tokens, heads, head_dim] as [1, heads, tokens, head_dim], as transformers has it."""
    return torch.from_numpy(part).transpose(0, 1)[None]


def causal_mask() -> torch.Tensor:
    return torch.full((TOKENS, TOKENS), -math.inf, dtype=torch.float64).triu(1)[None, None]


def test_soft_capped_scores_are_those_of_gemma_2(parts: tuple[Array, Array, Array]) -> None:
    module = SimpleNamespace(num_key_value_groups=HEADS // KV_HEADS, training=False, head_dim=1)
    expected, _ = transformers.models.gemma2.modeling_gemma2.eager_attention_forward(
        module, *map(as_torch, parts), causal_mask(), scaling=0.25, softcap=1.5
    )
    found = attend(*parts, UNTURNED, 0, TOKENS, Scores(scale=0.25, soft_cap=1.5))
    assert np.abs(found - expected[0].numpy()).max() < 1e-6  # their softmax is in float32


def test_learned_sink_logits_are_those_of_gpt_oss(parts: tuple[Array, Array, Array]) -> None:
    logits = np.array([0.5, -3.0, 4.0, 0.0])
    module = SimpleNamespace(
        num_key_value_groups=HEADS // KV_HEADS, training=False, sinks=torch.from_numpy(logits)
    )
    expected, _ = transformers.models.gpt_oss.modeling_gpt_oss.eager_attention_forward(
        module, *map(as_torch, parts), causal_mask(), scaling=0.25
    )
    found = attend(*parts, UNTURNED, 0, TOKENS, Scores(scale=0.25, sink_logits=logits))
    assert np.abs(found - expected[0].numpy()).max() < 1e-12


def test_alibi_is_that_of_mpt(parts: tuple[Array, Array, Array]) -> None:
    queries, keys, values = parts
    modeling = transformers.models.mpt.modeling_mpt
    bias = modeling.build_mpt_alibi_tensor(HEADS, TOKENS)[None].double()  # slope * (j - last)
    slopes = (bias[0, :, 0, -1] - bias[0, :, 0, -2]).numpy()
    wide = [as_torch(np.repeat(part, HEADS // KV_HEADS, axis=1)) for part in (keys, values)]
    scores = as_torch(queries) @ wide[0].transpose(2, 3) / math.sqrt(HEAD_DIM) + bias
    weights = torch.softmax(scores + causal_mask(), dim=-1)
    expected = (weights @ wide[1])[0].transpose(0, 1)
    found = attend(queries, keys, values, UNTURNED, 0, TOKENS, alibi(slopes))
    assert np.abs(found - expected.numpy()).max() < 1e-12


def test_alibi_counts_distances_in_the_cache_and_not_in_the_text(
    parts: tuple[Array, Array, Array],
) -> None:
    slopes = np.full(HEADS, 0.7)
    stream = attend(*parts, UNTURNED, 1, 3, alibi(slopes))
    # The last token sees token 0 and the last three, as if there were no other tokens.
    live = [0, TOKENS - 3, TOKENS - 2, TOKENS - 1]
    short = attend(*(part[live] for part in parts), UNTURNED, 0, 4, alibi(slopes))
    assert np.abs(stream[-1] - short[-1]).max() < 1e-12


def test_scores_whose_exponentials_overflow_are_still_read(
    parts: tuple[Array, Array, Array],
) -> None:
    queries, keys, values = parts
    query = queries[-1] * 1e4
    found = attend_one(query, keys, values, UNTURNED)
    for head in range(HEADS):
        group = head // (HEADS // KV_HEADS)
        products = keys[:, group] @ query[head]
        assert np.ptp(products) > 1e4
        assert np.abs(found[head] - values[products.argmax(), group]).max() < 1e-12
    # An even larger learned logit takes all the weight.
    nothing = attend_one(query, keys, values, UNTURNED, Scores(sink_logits=np.full(HEADS, 1e6)))
    assert np.abs(nothing).max() == 0


@pytest.mark.parametrize("name", ["llama", "llama-llama3", "qwen3"])
def test_the_original_protocol_is_a_window_of_one_more_token(name: str) -> None:
    drawn = tiny.build(name)
    decoder = from_hugging_face(drawn.config, drawn.weights)
    ids = np.random.default_rng(3).integers(0, drawn.config["vocab_size"], 60).tolist()
    stream = Streaming(decoder, start_size=3, recent_size=6)
    expected = decoder.forward(ids, sinks=3, window=7)
    assert np.abs(stream.feed(ids) - expected).max() < 1e-10 * np.abs(expected).max()
    assert stream.cached == 3 + 6


def test_making_space_gives_a_turn_at_once_what_single_tokens_see() -> None:
    drawn = tiny.build("llama")
    decoder = from_hugging_face(drawn.config, drawn.weights)
    ids = np.random.default_rng(4).integers(0, drawn.config["vocab_size"], 40).tolist()
    at_once, one_by_one = (Streaming(decoder, 2, 9) for _ in range(2))
    for stream in (at_once, one_by_one):
        stream.feed(ids[:30])
        stream.evict_for_space(7)
    expected = one_by_one.feed(ids[30:37])
    assert np.abs(at_once.feed_at_once(ids[30:37]) - expected).max() < 1e-10


def test_layers_with_a_window_of_their_own_see_no_sinks() -> None:
    drawn = tiny.build("llama")
    weights = dict(drawn.weights)
    last = drawn.config["num_hidden_layers"] - 1
    assert last >= 1
    # The output of the last layer is zeroed: only the others can carry a change to the end.
    weights[f"model.layers.{last}.self_attn.o_proj.weight"] = np.zeros_like(
        weights[f"model.layers.{last}.self_attn.o_proj.weight"]
    )
    ids = np.random.default_rng(5).integers(1, drawn.config["vocab_size"], 40).tolist()

    def first_token_matters(own_windows: list[int]) -> bool:
        decoder = from_hugging_face(drawn.config, weights, own_windows)
        before, after = (decoder.forward(x, 2, 9)[-1] for x in (ids, [0, *ids[1:]]))
        return bool(np.abs(after - before).max() > 0)

    assert first_token_matters([0] * (last + 1))
    assert first_token_matters([10] * (last + 1))  # longer than the stream's: sinks and window
    assert not first_token_matters([4] * last + [0])
