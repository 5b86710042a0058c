"""MPT with `qk_ln`, which transformers does not have: all of a token's queries are normalized."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import sinkstream
from tests.data.family_models import save_family


class _Normalized(torch.nn.Module):
    """`Wqkv`, followed by layer norms of the queries and of the keys."""

    def __init__(self, projection: torch.nn.Linear, weights: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.projection, self.weights = projection, weights

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.projection(x).chunk(3, dim=-1)
        norm: Any = torch.nn.functional.layer_norm
        q = norm(q, q.shape[-1:], self.weights["q_ln"], eps=1e-5)
        k = norm(k, k.shape[-1:], self.weights["k_ln"], eps=1e-5)
        return torch.cat([q, k, v], dim=-1)


def test_queries_and_keys_are_normalized_over_all_heads(tmp_path: Path, threads: int) -> None:
    theirs: Any = save_family("mpt", tmp_path)
    ids = torch.from_numpy(np.random.default_rng(1).integers(3, 290, (1, 200)))
    tensors = load_file(tmp_path / "model.safetensors")
    generator = torch.Generator().manual_seed(5)
    with torch.inference_mode():
        plain = theirs(ids, use_cache=False).logits[0].numpy()
        for layer, block in enumerate(theirs.transformer.blocks):
            draw = {
                name: 0.6 + 0.8 * torch.rand(96, generator=generator) for name in ("q_ln", "k_ln")
            }
            for name, weight in draw.items():
                tensors[f"transformer.blocks.{layer}.attn.{name}.weight"] = weight
            block.attn.Wqkv = _Normalized(block.attn.Wqkv, draw)
        expected = theirs(ids, use_cache=False).logits[0].numpy()
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    config["attn_config"]["qk_ln"] = True
    (tmp_path / "config.json").write_text(json.dumps(config))
    with sinkstream.load(
        tmp_path, dtype="float32", kv_dtype="float32", window=200, threads=threads
    ) as model:
        found = model.forward(ids)[0].numpy()
    limit = 1e-4 * np.abs(expected).max()
    assert np.abs(found - expected).max() <= limit < np.abs(plain - expected).max()
