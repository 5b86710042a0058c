"""The reference itself, checked against transformers, by hand, and against its other form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.data import tiny
from tests.data.slot_weights import decoder_of
from tests.reference.attention import attend
from tests.reference.hugging_face import from_hugging_face
from tests.reference.rope import Rope, rope_from_config
from tests.reference.window import live_indices, positions


def random_ids(vocab: int, count: int) -> list[int]:
    return list(map(int, np.random.default_rng(count).integers(0, vocab, count)))


@pytest.mark.parametrize("name", [*tiny.FAMILIES, *tiny.ROPE_SCHEMES])
def test_dense_reference_equals_transformers_in_float64(name: str, tmp_path: Path) -> None:
    from tests.reference.oracle import Oracle

    model = tiny.build(name)
    decoder = from_hugging_face(model.config, model.weights)
    ids = random_ids(model.config["vocab_size"], 97)
    rope = decoder.rope_of(0)
    oracle = Oracle(tiny.write_folder(model, tmp_path / name))
    np.testing.assert_allclose(decoder.forward(ids), oracle.logits(ids), atol=1e-4, rtol=1e-4)

    oracle.in_float64(rope.inverse_frequencies, rope.attention_factor)
    expected = oracle.logits(ids)
    assert expected.dtype == np.float64
    np.testing.assert_allclose(decoder.forward(ids), expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", [*tiny.FAMILIES, *tiny.ROPE_SCHEMES])
def test_frequencies_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    from tests.reference.oracle import Oracle

    model = tiny.build(name)
    rope = from_hugging_face(model.config, model.weights).rope_of(0)
    rotary = Oracle(tiny.write_folder(model, tmp_path / name)).model.model.rotary_emb
    np.testing.assert_allclose(rope.inverse_frequencies, rotary.inv_freq.numpy(), rtol=2e-6)
    assert rope.attention_factor == pytest.approx(rotary.attention_scaling)


@pytest.mark.parametrize("name", ["llama", "phi3", "qwen2", "qwen3"])
def test_a_checkpoints_own_description_gives_the_same_reference(name: str, tmp_path: Path) -> None:
    model = tiny.build(name)
    ids = random_ids(model.config["vocab_size"], 40)
    for storage in ("F32", "F16", "BF16"):
        rounded = tiny.as_stored(model, storage)
        decoder = from_hugging_face(rounded.config, rounded.weights)
        expected = decoder.forward(ids, 3, 9)
        folder = tiny.write_folder(model, tmp_path / storage, dtype=storage)
        file = tiny.write_gguf(model, tmp_path / f"{storage}.gguf", storage)
        np.testing.assert_allclose(decoder_of(file).forward(ids, 3, 9), expected, atol=1e-4)
        if storage == "F32":  # in the others, folders hold rounded vectors too
            np.testing.assert_allclose(decoder_of(folder).forward(ids, 3, 9), expected, atol=1e-4)


def test_blocks_of_a_file_are_read_as_numbers(tmp_path: Path) -> None:
    model = tiny.as_stored(tiny.build("llama"), "Q8_0")
    file = tiny.write_gguf(tiny.build("llama"), tmp_path / "m.gguf", "Q8_0")
    ids = random_ids(model.config["vocab_size"], 40)
    expected = from_hugging_face(model.config, model.weights).forward(ids, 3, 9)
    np.testing.assert_allclose(decoder_of(file).forward(ids, 3, 9), expected, atol=1e-4)


@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_window_that_holds_everything_is_dense_attention(name: str) -> None:
    model = tiny.build(name)
    decoder = from_hugging_face(model.config, model.weights)
    ids = random_ids(model.config["vocab_size"], 40)
    dense = decoder.forward(ids)
    for sinks, window in ((0, 40), (4, 36), (40, 1), (3, 100)):
        np.testing.assert_allclose(decoder.forward(ids, sinks, window), dense, atol=1e-12, rtol=0)


def test_query_sees_the_first_tokens_and_the_last_ones() -> None:
    # Two sinks and a window of three, as in StreamingLLM's figure 4.
    assert [live_indices(t, 2, 3) for t in (0, 1, 2, 4, 5, 9)] == [
        [0],
        [0, 1],
        [0, 1, 2],
        [0, 1, 2, 3, 4],
        [0, 1, 3, 4, 5],
        [0, 1, 7, 8, 9],
    ]
    assert positions(1, 2, 3) == [0, 1]
    assert positions(9, 2, 3) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("sinks", "window"), [(s, w) for s in range(6) for w in range(1, 10)])
def test_live_tokens_follow_the_definition(sinks: int, window: int) -> None:
    for t in range(4 * (sinks + window)):
        seen = {j for j in range(sinks) if j <= t}
        seen |= {i for i in range(t + 1) if i >= sinks and t - window < i <= t}
        assert live_indices(t, sinks, window) == sorted(seen)
        assert positions(t, sinks, window)[-1] == min(t, sinks + window - 1)


def test_interleaved_pairs_are_the_half_split_of_permuted_rows() -> None:
    model = tiny.build("llama")
    half = rope_from_config(model.config, 16)
    interleaved = Rope(half.inverse_frequencies, pairing="interleaved")
    draw = np.random.default_rng(1)
    q, k, v = draw.normal(size=(3, 30, 2, 16))
    order = np.arange(16).reshape(2, 8).T.reshape(-1)  # 0, 8, 1, 9, …
    np.testing.assert_allclose(
        attend(q[..., order], k[..., order], v, interleaved, 2, 5),
        attend(q, k, v, half, 2, 5),
        atol=1e-12,
    )
