"""Every variant of every family, as transformers writes it, has the logits of transformers."""

from __future__ import annotations

import json
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import sinkstream
from sinkstream.export.write_quantized import write_quantized
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


def qwen3_vl(*, has_experts: bool) -> transformers.PreTrainedModel:
    """Return a tiny Qwen3-VL."""
    experts = {
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "mlp_only_layers": [],
    }  # fmt: skip
    text = {
        "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 512, "tie_word_embeddings": False,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3],
            "mrope_interleaved": True,
        },
        **(experts if has_experts else {}),
    }  # fmt: skip
    vision = {
        "depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "patch_size": 4,
        "out_hidden_size": 64, "num_position_embeddings": 16, "deepstack_visual_indexes": [0],
    }  # fmt: skip
    config = transformers.AutoConfig.for_model(
        "qwen3_vl_moe" if has_experts else "qwen3_vl", text_config=text, vision_config=vision
    )
    torch.manual_seed(1)
    kind: Any = transformers.AutoModelForImageTextToText
    model: transformers.PreTrainedModel = kind.from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.2 + (weight.dim() == 1))
    return model


def transpose_experts(folder: Path) -> Path:
    """Store the experts of a folder as published: transformers saves them as it keeps them."""
    tensors = load_file(folder / "model.safetensors")
    for tensor, weight in tensors.items():
        if ".mlp.experts." in tensor:
            tensors[tensor] = weight.transpose(1, 2).contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.filterwarnings("ignore:load. .*for images or sound")
@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_the_text_of_qwen3_vl_has_the_logits_of_transformers(
    family: str, tmp_path: Path, threads: int
) -> None:
    theirs = qwen3_vl(has_experts=family == "qwen3_moe")
    ids = torch.from_numpy(np.random.default_rng(2).integers(3, 290, (1, TOKENS)))
    with torch.inference_mode():
        expected = theirs(ids, use_cache=False).logits[0].numpy()
    name = family.replace("qwen3", "qwen3vl").replace("_", "")
    file = write_family_gguf(theirs, tmp_path / "file.gguf", family=family, name=name)
    theirs.save_pretrained(tmp_path / "saved")
    published = transpose_experts(shutil.copytree(tmp_path / "saved", tmp_path / "published"))
    options: dict[str, Any] = {"dtype": "float32", "kv_dtype": "float32", "window": TOKENS}
    write_quantized(published, tmp_path / "written.gguf", "F32")
    for path in (file, tmp_path / "saved", published, tmp_path / "written.gguf"):
        with sinkstream.load(path, threads=threads, **options) as model:
            found = model.forward(ids)[0].numpy()
        assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max(), path


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


def test_granites_expert_for_every_token_has_the_logits_of_transformers(
    tmp_path: Path, threads: int
) -> None:
    fields = {**FAMILY_CONFIGS["granitemoe"], "shared_intermediate_size": 72}
    config = transformers.AutoConfig.for_model(**{**fields, "model_type": "granitemoeshared"})
    torch.manual_seed(1)
    theirs = transformers.AutoModelForCausalLM.from_config(config).eval()
    theirs.save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**stored, "model_type": "granitemoe"}))
    ids = torch.arange(3, 103)[None]
    with torch.inference_mode():
        expected = theirs(ids, use_cache=False).logits[0].numpy()
    with sinkstream.load(
        tmp_path, dtype="float32", kv_dtype="float32", window=TOKENS, threads=threads
    ) as model:
        found = model.forward(ids)[0].numpy()
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()
