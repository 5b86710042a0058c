"""`benchmarks/expanded_gguf.py`: the same model, in 16 bits, with no block left as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

import sinkstream
from benchmarks.expanded_gguf import expand

pytestmark = pytest.mark.full


@pytest.mark.parametrize("reorder", [False, True])
def test_an_expanded_file_is_the_same_model(
    tiny_gguf: Callable[[str, str], Path], tmp_path: Path, reorder: bool
) -> None:
    source, target = tiny_gguf("llama", "Q4_1"), tmp_path / "f16.gguf"
    expand(source, target, reorder)
    ids = torch.arange(1, 40)[None]
    found, expected = (
        sinkstream.load(path, window=60, dtype="float32", kv_dtype="float32").forward(ids)
        for path in (target, source)
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=float(expected.abs().max()) * 2e-3)


def test_a_new_order_moves_every_matrix(
    tiny_gguf: Callable[[str, str], Path], tmp_path: Path
) -> None:
    source = tiny_gguf("llama", "Q4_1")
    weights = []
    for reorder in (False, True):
        target = tmp_path / f"{reorder}.gguf"
        expand(source, target, reorder)
        weights.append({each.name: each.data.copy() for each in gguf.GGUFReader(target).tensors})
    plain, moved = weights
    assert list(plain) == list(moved)
    for name, weight in plain.items():
        assert np.array_equal(np.sort(weight, axis=None), np.sort(moved[name], axis=None))
        # Blocks of a row: none holds the numbers that it held. (A head of this model is one block.)
        if weight.ndim == 2 and "attn_output" not in name:
            kept = np.sort(weight.reshape(-1, 32), axis=1)[:, None] == np.sort(
                moved[name].reshape(-1, 32), axis=1
            )
            assert not kept.all(axis=2).any(), name


def test_a_new_order_is_refused_for_other_families(
    tiny_gguf: Callable[[str, str], Path], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match="qwen2"):
        expand(tiny_gguf("qwen2", "Q4_1"), tmp_path / "f16.gguf", reorder=True)
    assert list(tmp_path.iterdir()) == []
