"""Dense forwards (without a cache), compared with transformers and the float64 reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sinkstream
from tests.data import tiny
from tests.reference.hugging_face import from_hugging_face
from tests.reference.oracle import Oracle


def random_ids(vocab: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(sum(shape)).integers(0, vocab, shape))


def load(path: Path, threads: int, **options: Any) -> sinkstream.Model:
    exact: dict[str, Any] = {
        "dtype": "float32",
        "kv_dtype": "float32",
        "window": 64,
        "threads": threads,
    }
    return sinkstream.load(path, **{**exact, **options})


def assert_close(found: torch.Tensor, expected: np.ndarray, relative: float) -> None:
    """Compare every row of logits, relative to its largest one."""
    assert found.dtype == torch.float32
    assert tuple(found.shape) == expected.shape
    difference = np.abs(found.numpy() - expected).max(axis=-1)
    assert (difference <= relative * np.abs(expected).max(axis=-1)).all(), difference.max()


@pytest.mark.parametrize("name", [*tiny.FAMILIES, *tiny.ROPE_SCHEMES, "llama-sharded"])
def test_logits_of_a_folder_equal_those_of_transformers(
    name: str, tiny_folder: Callable[[str], Path], threads: int
) -> None:
    folder = tiny_folder(name)
    oracle = Oracle(folder)
    with load(folder, threads) as model:
        ids = random_ids(model.spec.vocab_size, 1, 200)
        assert_close(model.forward(ids)[0], oracle.logits(ids[0].tolist()), 1e-4)


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_logits_of_a_16_bit_folder_equal_the_reference_on_what_is_stored(
    dtype: str, tmp_path: Path, threads: int
) -> None:
    drawn = tiny.build("qwen2")
    rounded = getattr(torch, {"F16": "float16", "BF16": "bfloat16"}[dtype])
    stored = {
        name: torch.from_numpy(weight).to(rounded).float().numpy()
        for name, weight in drawn.weights.items()
    }
    with load(tiny.write_folder(drawn, tmp_path / "model", dtype=dtype), threads) as model:
        ids = random_ids(model.spec.vocab_size, 1, 50)
        expected = from_hugging_face(drawn.config, stored).forward(ids[0].tolist())
        assert_close(model.forward(ids)[0], expected, 1e-5)


@pytest.mark.parametrize(
    ("name", "storage"),
    [
        *((tiny.model_for(s), s) for s in tiny.STORAGES),
        ("mistral", "F32"),
        ("phi3", "F32"),
        ("phi3", "Q8_0"),
        ("qwen2", "F32"),
        ("qwen2", "Q8_0"),
        ("qwen3", "F32"),
    ],
)
def test_logits_of_a_gguf_file_equal_the_reference_on_what_is_stored(
    name: str, storage: str, tiny_gguf: Callable[[str, str], Path], threads: int
) -> None:
    stored = tiny.as_stored(tiny.build(name), storage)
    with load(tiny_gguf(name, storage), threads) as model:
        ids = random_ids(model.spec.vocab_size, 1, 130)
        expected = from_hugging_face(stored.config, stored.weights).forward(ids[0].tolist())
        assert_close(model.forward(ids)[0], expected, 1e-5)


@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_a_row_of_a_batch_has_the_logits_it_has_alone(
    name: str, tiny_folder: Callable[[str], Path], threads: int
) -> None:
    with load(tiny_folder(name), threads) as model:
        ids = random_ids(model.spec.vocab_size, 3, 70)
        together = model.forward(ids)
        assert tuple(together.shape) == (3, 70, model.spec.vocab_size)
        for row in range(3):
            assert torch.equal(together[row], model.forward(ids[row : row + 1])[0])


def test_dense_logits_do_not_depend_on_what_follows(
    tiny_folder: Callable[[str], Path], threads: int
) -> None:
    with load(tiny_folder("llama"), threads) as model:
        ids = random_ids(model.spec.vocab_size, 1, 150)
        whole = model.forward(ids)
        for length in (1, 2, 7, 63, 64, 65, 128, 149):
            assert torch.equal(model.forward(ids[:, :length]), whole[:, :length])


def test_dense_forward_sees_further_than_the_window(
    tiny_folder: Callable[[str], Path], threads: int
) -> None:
    folder = tiny_folder("qwen3")
    with load(folder, threads, sinks=1, window=5) as model:
        ids = random_ids(model.spec.vocab_size, 1, 90)
        assert_close(model.forward(ids)[0], Oracle(folder).logits(ids[0].tolist()), 1e-4)


def test_forward_of_no_tokens_gives_no_logits(
    tiny_folder: Callable[[str], Path], threads: int
) -> None:
    with load(tiny_folder("llama"), threads) as model:
        empty = torch.empty(1, 0, dtype=torch.int64)
        assert tuple(model.forward(empty).shape) == (1, 0, model.spec.vocab_size)
        assert tuple(model.forward(empty, model.new_cache()).shape) == (1, 0, 293)


@pytest.mark.full  # in `make test`, its greedy tokens are compared with a record
def test_logits_of_smollm2_equal_those_of_transformers(
    smollm2: Path, prose: str, threads: int
) -> None:
    with load(smollm2, threads, window=1020) as model:
        ids = torch.tensor([model.tokenizer.encode(prose).ids[:128]])
        dense = model.forward(ids)[0]
        cached = model.forward(ids, model.new_cache())[0]
    expected = Oracle(smollm2.parent, gguf_file=smollm2.name).logits(ids[0].tolist())
    assert_close(dense, expected, 1e-3)
    assert_close(cached, expected, 1e-3)
