"""A folder and what llama.cpp's converter makes of it are one model, in every family.

The converter permutes, splits and fuses rows, adds constants and names things in its own way.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import sinkstream
from tests.data import tiny
from tests.data.family_configs import FAMILY_CONFIGS
from tests.data.family_models import save_family
from tests.python.checkpoint import convert_with_llama_cpp
from tests.python.text.llama_cpp_sources import files_of_sdist

TOKENS = 100  # more than any layer's own window
WINDOW = 300  # with it, the capacity is more than what one of the longropes was trained for
TOLERANCE = 1e-6  # relative to a text's largest logit

# Files of these architectures do not name the layers' own windows: texts are as short as these.
SHORT_TEXTS = {
    "mistral-windows": 40,
    "qwen2-windows": 32,
    "qwen3-all-windows": 32,
    "smollm3-windows": 32,
    "starcoder2": 40,
}

# Nor do files name these fields: they have one value in all published models of a family.
_GEMMA3 = {"query_pre_attn_scalar": 32, "num_hidden_layers": 7, "layer_types": None}
CHANGES: dict[str, dict[str, Any]] = {
    "gemma2": {"query_pre_attn_scalar": 32},
    "gemma3": _GEMMA3,
    "gemma3-linear": _GEMMA3,
    "gemma3-wrapped": _GEMMA3,
    "gpt_neox-sequential": {"hidden_act": "gelu", "rotary_emb_base": 10_000},
    "falcon-groups-one-norm": {"ffn_hidden_size": 4 * 96, "rope_theta": 10_000.0},
    "mpt-clipped": {"attn_config": {"clip_qkv": 0.8}},
}

REFUSED = {
    "cohere2-untied": "llama.cpp's Command R7B has no output matrix but the embedding",
    "falcon-alibi": "llama.cpp's Falcon has neither ALiBi nor a second norm in each layer",
    "gemma2-no-caps": "llama.cpp's Gemma 2 always has soft caps",
}


@pytest.fixture(scope="module")
def converted(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with every model, as a folder and as a GGUF file; convert them all at once."""
    wanted = ("conversion/", "gguf-py/gguf/")
    sources = files_of_sdist(pytestconfig, "converter", lambda path: path.startswith(wanted))
    root = tmp_path_factory.mktemp("converted")
    for name in tiny.CONFIGS:
        tiny.write_folder(without_peaks(tiny.build(name)), root / name)
    for name in FAMILY_CONFIGS:
        save_family(name, root / name, peak=1.0, **CHANGES.get(name, {}))
    command = [sys.executable, convert_with_llama_cpp.__file__, sources, root]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    refusals = json.loads(done.stdout.splitlines()[-1])
    unexpected = {name: why for name, why in refusals.items() if why and name not in REFUSED}
    assert not unexpected, done.stderr
    return root


@pytest.mark.filterwarnings("ignore:load. .*for images or sound")
@pytest.mark.parametrize("name", [*tiny.CONFIGS, *FAMILY_CONFIGS])
def test_a_converted_folder_is_the_same_model(name: str, converted: Path, threads: int) -> None:
    file = converted / f"{name}.gguf"
    if name in REFUSED:
        assert not file.exists()
        pytest.skip(REFUSED[name])
    expected = logits_of(converted / name, name, threads)
    difference = np.abs(logits_of(file, name, threads) - expected).max()
    assert difference <= TOLERANCE * np.abs(expected).max()


def without_peaks(model: tiny.TinyModel) -> tiny.TinyModel:
    """Return the model with smaller scores, whose softmax enlarges rounding errors less."""
    wide = ("q_proj.weight", "k_proj.weight")
    weights = {
        name: weight / np.float32(1.6) if name.endswith(wide) else weight
        for name, weight in model.weights.items()
    }
    return replace(model, weights=weights)


def logits_of(path: Path, name: str, threads: int) -> npt.NDArray[np.float32]:
    with sinkstream.load(
        path, dtype="float32", kv_dtype="float32", window=WINDOW, threads=threads
    ) as model:
        tokens = SHORT_TEXTS.get(name, TOKENS)
        drawn = np.random.default_rng(tokens).integers(0, model.spec.vocab_size, (1, tokens))
        return model.forward(torch.from_numpy(drawn))[0].numpy()
