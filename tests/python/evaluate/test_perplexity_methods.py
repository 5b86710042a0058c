"""Every method scores as its literal float64 definition does, token by token."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch

import sinkstream
from sinkstream.evaluate import perplexity
from tests.python.evaluate.conftest import SINKS, WINDOW, random_ids
from tests.reference.decoder import Decoder

TOKENS = 130

Rows = Callable[[Decoder, list[int]], np.ndarray]


def surprise(logits: np.ndarray, following: list[int]) -> np.ndarray:
    """Return -log p of the tokens that followed, in float64."""
    top = logits.max(axis=-1, keepdims=True)
    total = np.log(np.exp(logits - top).sum(axis=-1)) + top[:, 0]
    return total - logits[np.arange(len(following)), following]


def recomputed(definition: Decoder, ids: list[int]) -> np.ndarray:
    """Return the logits for each token from a dense forward over its window."""
    begins = [max(0, index - SINKS - WINDOW) for index in range(1, len(ids))]
    return np.stack(
        [definition.forward(ids[begin:index])[-1] for index, begin in enumerate(begins, 1)]
    )


DEFINITIONS: dict[str, Rows] = {
    "sinks": lambda d, ids: d.forward(ids, SINKS, WINDOW)[:-1],
    "protocol": lambda d, ids: d.forward(ids, SINKS, WINDOW)[:-1],
    "window": lambda d, ids: d.forward(ids, 0, SINKS + WINDOW)[:-1],
    "dense": lambda d, ids: d.forward(ids)[:-1],
    "recompute": recomputed,
}


@pytest.mark.filterwarnings("ignore:perplexity. method .dense. keeps")
@pytest.mark.parametrize("method", DEFINITIONS)
def test_every_method_scores_what_its_definition_says(
    method: str, model: sinkstream.Model, definition: Decoder
) -> None:
    ids = random_ids(TOKENS)
    found = perplexity(model, ids, method=method)
    expected = surprise(DEFINITIONS[method](definition, ids.tolist()), ids[1:].tolist())
    assert found.nll is not None
    np.testing.assert_allclose(found.nll, expected, rtol=0, atol=2e-4)
    assert found.mean_nll == pytest.approx(expected.mean(), abs=2e-5)
    assert found.perplexity == pytest.approx(math.exp(expected.mean()), rel=2e-5)
    assert (found.tokens, found.method) == (TOKENS - 1, method)


def test_methods_differ_once_the_cache_is_full(model: sinkstream.Model) -> None:
    # Otherwise the test above would not distinguish them.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nll = {
            method: perplexity(model, random_ids(TOKENS), method=method).nll
            for method in ("sinks", "window", "dense", "recompute")
        }
    full = SINKS + WINDOW
    for method in ("window", "dense", "recompute"):
        # Not bit for bit: sinks have their own pages, which attention adds first.
        np.testing.assert_allclose(nll[method][:full], nll["sinks"][:full], atol=1e-5)
        assert np.abs(nll[method][full + 1 :] - nll["sinks"][full + 1 :]).max() > 0.01


@pytest.mark.parametrize("chunk", [1, 3, 64, 1000])
@pytest.mark.parametrize("block", [7, 1000])
def test_chunks_and_blocks_change_no_bit(chunk: int, block: int, model: sinkstream.Model) -> None:
    ids = random_ids(TOKENS)
    plain = perplexity(model, ids)
    cut = perplexity(model, ids, chunk=chunk, block=block)
    assert cut.nll is not None
    np.testing.assert_array_equal(cut.nll, plain.nll)


def test_sinks_and_window_may_be_others_than_the_models(
    model: sinkstream.Model, definition: Decoder
) -> None:
    ids = random_ids(TOKENS)
    found = perplexity(model, ids, sinks=2, window=9)
    expected = surprise(definition.forward(ids.tolist(), 2, 9)[:-1], ids[1:].tolist())
    assert found.nll is not None
    np.testing.assert_allclose(found.nll, expected, rtol=0, atol=2e-4)
    assert (found.settings["sinks"], found.settings["window"]) == (2, 9)


def test_a_sample_is_scored_as_in_the_whole_and_only_where_the_window_slides(
    model: sinkstream.Model,
) -> None:
    ids = random_ids(TOKENS)
    whole = perplexity(model, ids, method="recompute", block=50)
    part = perplexity(model, ids, method="recompute", sample=12, seed=3, block=50)
    assert part.nll is not None
    assert part.scored is not None
    assert part.tokens == len(set(part.scored.tolist())) == 12
    assert part.scored.min() > SINKS + WINDOW
    np.testing.assert_array_equal(part.nll, whole.nll[part.scored - 1])
    other = perplexity(model, ids, method="recompute", sample=12, seed=4, block=50)
    assert other.scored.tolist() != part.scored.tolist()
    assert (part.settings["sample"], part.settings["seed"]) == (12, 3)


def test_a_sample_of_all_is_every_token_after_the_first_window(model: sinkstream.Model) -> None:
    first = SINKS + WINDOW + 1
    found = perplexity(model, random_ids(60), method="recompute", sample=60 - first)
    assert found.scored.tolist() == list(range(first, 60))


def test_the_protocol_reads_one_token_at_a_time(
    model: sinkstream.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: set[int] = set()
    forward = type(model).forward

    def spy(self: sinkstream.Model, ids: torch.Tensor, cache: object = None) -> torch.Tensor:
        if cache is not None:
            sizes.add(ids.shape[1])
        return forward(self, ids, cache)

    monkeypatch.setattr(type(model), "forward", spy)
    found = perplexity(model, random_ids(50), method="protocol", chunk=16)
    assert sizes == {1}
    assert (found.settings["start_size"], found.settings["recent_size"]) == (SINKS, WINDOW - 1)


def test_a_text_is_scored_as_its_tokens_are(model: sinkstream.Model, prose: str) -> None:
    ids = model.tokenizer.encode(prose[:400], add_special_tokens=False).ids
    by_text = perplexity(model, prose[:400])
    for same in (ids, np.array(ids), torch.tensor(ids), torch.tensor([ids])):
        assert perplexity(model, same) == by_text
    assert perplexity(model, prose, max_tokens=len(ids) - 3) == perplexity(model, ids[:-3])


def test_bits_per_byte_count_the_bytes_of_the_scored_tokens(
    model: sinkstream.Model, prose: str
) -> None:
    text = "ä€𝄞 " + prose[:200]  # characters of 2, 3 and 4 bytes
    found = perplexity(model, text)
    first = model.tokenizer.encode(text, add_special_tokens=False).ids[0]
    assert model.tokenizer.id_to_token(first) == "Ã"  # the first of two bytes, which is not scored
    nats = found.mean_nll * found.tokens
    assert found.bits_per_byte == pytest.approx(nats / math.log(2) / (len(text.encode()) - 1))


def test_control_literals_of_a_text_are_plain_text(model: sinkstream.Model) -> None:
    found = perplexity(model, "<|im_start|> and nothing else, again and again")
    assert found.tokens > 30  # as a control token it would be one of about ten


def test_smollm2_keeps_its_perplexity_with_sinks_and_loses_it_without(
    smollm2: object, prose: str, threads: int
) -> None:
    with sinkstream.load(smollm2, sinks=4, window=60, threads=threads) as real:
        found = {
            method: perplexity(real, prose, method=method, max_tokens=700, block=100)
            for method in ("sinks", "window")
        }
    assert found["sinks"].perplexity_from(200) < 60
    assert found["window"].perplexity_from(200) > 1.5 * found["sinks"].perplexity_from(200)
