"""Every variant of every family, as transformers writes it, has the logits of transformers."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

import sinkstream
from tests.data.family_configs import FAMILY_CONFIGS, NOT_IN_GGUF
from tests.data.family_gguf import write_family_gguf
from tests.data.family_models import save_family

TOKENS = 300  # more than any layer's own window


@pytest.fixture(autouse=True)
def exact_alibi(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Falcon's ALiBi be linear: transformers rounds slopes times positions to bfloat16."""
    from transformers.models.falcon import modeling_falcon

    rounded = modeling_falcon.build_alibi_tensor

    def exact(attention_mask: torch.Tensor, num_heads: int, dtype: torch.dtype) -> torch.Tensor:
        slopes = rounded(attention_mask, num_heads, dtype)[..., 1:2]  # those of position 1
        return slopes * (attention_mask.cumsum(-1) - 1)[:, None]

    monkeypatch.setattr(modeling_falcon, "build_alibi_tensor", exact)


@pytest.mark.filterwarnings("ignore:load. .*for images or sound")
@pytest.mark.parametrize("name", FAMILY_CONFIGS)
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path, threads: int) -> None:
    theirs = save_family(name, tmp_path / "folder")
    drawn = np.random.default_rng(len(name)).integers(3, 290, (1, TOKENS))
    ids = torch.from_numpy(drawn)
    with torch.inference_mode():
        expected = theirs(ids, use_cache=False).logits[0].numpy()
    formats = [tmp_path / "folder"]
    if name not in NOT_IN_GGUF:
        formats.append(write_family_gguf(theirs, tmp_path / "file.gguf"))
    for path, sinks in product(formats, (0, 4)):
        with sinkstream.load(
            path,
            dtype="float32",
            kv_dtype="float32",
            sinks=sinks,
            window=TOKENS,
            threads=threads,
        ) as model:
            found = model.forward(ids)[0].numpy()
            streamed = model.forward(ids, model.new_cache())[0].numpy()
        for logits in (found, streamed):
            assert np.abs(logits - expected).max() <= 1e-4 * np.abs(expected).max(), path


def test_the_capacity_of_the_cache_decides_the_frequencies_of_longrope(
    tmp_path: Path, threads: int
) -> None:
    save_family("phi3-longrope-long", tmp_path)
    ids = torch.arange(100)[None]
    found = []
    for sinks, window in ((0, 127), (4, 124), (4, 125), (0, 300)):
        with sinkstream.load(tmp_path, sinks=sinks, window=window, threads=threads) as model:
            (rope,) = model.spec.ropes
            assert rope.long is None
            found.append((rope.inverse_frequencies, model.forward(ids)))
    below, at, above, far_above = found
    assert below[0] == at[0] != above[0] == far_above[0]
    assert torch.equal(below[1], at[1])
    assert torch.equal(above[1], far_above[1])
    assert (at[1] - above[1]).abs().max() > 0.1
