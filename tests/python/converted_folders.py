"""Every tiny model as a folder, and as the GGUF file that llama.cpp's converter makes of it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data import tiny
from tests.data.family_configs import FAMILY_CONFIGS
from tests.data.family_models import save_family
from tests.python.checkpoint import convert_with_llama_cpp
from tests.python.text.llama_cpp_sources import files_of_sdist

# GGUF files do not name these fields: they have one value in all published models of a family.
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


def convert_all(config: pytest.Config, root: Path) -> None:
    """Write every model into a folder under `root`, and next to it as FOLDER.gguf.

    A folder in `REFUSED` has no file.
    """
    wanted = ("conversion/", "gguf-py/gguf/")
    sources = files_of_sdist(config, "converter", lambda path: path.startswith(wanted))
    for name in tiny.CONFIGS:
        tiny.write_folder(without_peaks(tiny.build(name)), root / name)
    for name in FAMILY_CONFIGS:
        save_family(name, root / name, peak=1.0, **CHANGES.get(name, {}))
    command = [sys.executable, convert_with_llama_cpp.__file__, sources, root]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    refusals = json.loads(done.stdout.splitlines()[-1])
    unexpected = {name: why for name, why in refusals.items() if why and name not in REFUSED}
    assert not unexpected, done.stderr


def without_peaks(model: tiny.TinyModel) -> tiny.TinyModel:
    """Return the model with smaller scores, whose softmax enlarges rounding errors less."""
    wide = ("q_proj.weight", "k_proj.weight")
    weights = {
        name: weight / np.float32(1.6) if name.endswith(wide) else weight
        for name, weight in model.weights.items()
    }
    return replace(model, weights=weights)
