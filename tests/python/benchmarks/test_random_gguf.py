"""`benchmarks/random_gguf.py`: files that every reader accepts, with weights of a sensible size."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

import sinkstream
from benchmarks import random_gguf

pytestmark = pytest.mark.full


@pytest.fixture(autouse=True)
def _small_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_gguf, "_POOL", 211)  # a prime; the largest matrix has 320 blocks
    monkeypatch.setattr(random_gguf, "_SUPER_POOL", 211)
    for name, shape in EXPERTS.items():
        monkeypatch.setitem(random_gguf.SHAPES, name, shape)


Shape = random_gguf.Shape
EXPERTS = {
    "qwen3moe": Shape("qwen3moe", 2, 256, 256, 4, 2, 64, 160, 1e4, True, False, 6, 2),
    "gpt-oss": Shape("gpt-oss", 2, 64, 64, 4, 2, 16, 160, 1e4, False, False, 6, 2),
}
MATRICES = [
    *(("tiny", kind) for kind in ("BF16", "F16", "F32", "Q4_0", "Q4_1", "Q8_0")),
    *(("qwen3moe", kind) for kind in ("BF16", "Q4_K", "Q4_K_M", "Q6_K")),
    ("gpt-oss", "MXFP4"),
]


@pytest.mark.parametrize(("name", "kind"), MATRICES)
def test_a_file_holds_the_shape_and_random_weights(name: str, kind: str, tmp_path: Path) -> None:
    shape = random_gguf.SHAPES[name]
    path = random_gguf.write(name, kind, tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    expected = random_gguf.tensors(shape)
    assert list(found) == [tensor.full_name for tensor in expected]
    for tensor in expected:
        read = found[tensor.full_name]
        weights = gguf.quants.dequantize(read.data, read.tensor_type)
        if not tensor.cols:
            assert (weights == (0 if tensor.name.endswith("bias") else 1)).all()
            continue
        if tensor.experts:
            assert weights.shape[0] == tensor.experts
            weights = weights[1]
        assert weights.shape == (tensor.rows, tensor.cols)
        assert abs(np.mean(weights)) * np.sqrt(tensor.cols) < 0.1
        assert np.std(weights) * np.sqrt(tensor.cols) == pytest.approx(1, abs=0.1)
        assert len(np.unique(weights, axis=0)) == tensor.rows  # though the pool is smaller


@pytest.mark.parametrize(
    ("name", "kind"), [("tiny", "BF16"), ("qwen3moe", "Q4_K_M"), ("gpt-oss", "MXFP4")]
)
def test_a_model_of_such_a_file_streams(name: str, kind: str, tmp_path: Path) -> None:
    path = random_gguf.write(name, kind, tmp_path)
    with sinkstream.load(path, window=12) as model:
        logits = model.forward(torch.tensor([[3, 1, 4, 1, 5]]))
        assert bool(logits.isfinite().all())
        assert 0.1 < float(logits.std()) < 10
        reply = model.generate([3, 1, 4], max_tokens=40, ignore_eos=True, temperature=0)
    assert reply.stats.evicted_tokens > 12


def test_a_vocabulary_of_a_real_size_has_a_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = random_gguf.SHAPES["tiny"]
    monkeypatch.setitem(random_gguf.SHAPES, "tiny", dataclasses.replace(tiny, vocab=1024))
    path = random_gguf.write("tiny", "Q4_0", tmp_path)
    with sinkstream.load(path, window=12) as model:
        tokenizer = model.tokenizer
        assert tokenizer is not None
        found = tokenizer.encode("the")
        assert found.tokens == ["th", "e"]
        assert tokenizer.token_to_id("[1023]") == 1023
        reply = model.generate("the", max_tokens=8, ignore_eos=True, temperature=0)
        assert len(reply.token_ids) == 8
        assert reply.text


def test_no_two_rows_of_a_large_matrix_begin_at_the_same_block() -> None:
    pool = 1_048_583  # the real one; this file patches it
    assert all(pool % divisor for divisor in range(2, 1025))
    for shape in random_gguf.SHAPES.values():
        for tensor in random_gguf.tensors(shape):
            if tensor.cols:
                assert tensor.cols % 32 == 0
                assert tensor.rows < pool
                assert tensor.cols // 32 < pool
