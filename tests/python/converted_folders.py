"""Every tiny model as a folder, and as the GGUF file that llama.cpp's converter makes of it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.data import tiny
from tests.data.family_configs import AS_PUBLISHED, FAMILY_CONFIGS, NOT_CONVERTED
from tests.data.family_models import save_family
from tests.python.checkpoint import convert_with_llama_cpp
from tests.python.text.llama_cpp_sources import files_of_sdist


def convert_all(config: pytest.Config, root: Path) -> None:
    """Write every model into a folder under `root`, and next to it as FOLDER.gguf.

    A folder in `NOT_CONVERTED` has no file.
    """
    wanted = ("conversion/", "gguf-py/gguf/")
    sources = files_of_sdist(config, "converter", lambda path: path.startswith(wanted))
    for name in tiny.CONFIGS:
        tiny.write_folder(without_peaks(tiny.build(name)), root / name)
    for name in FAMILY_CONFIGS:
        save_family(name, root / name, peak=1.0, **AS_PUBLISHED.get(name, {}))
    command = [sys.executable, convert_with_llama_cpp.__file__, sources, root]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    refusals = json.loads(done.stdout.splitlines()[-1])
    for name, why in refusals.items():
        if why and name not in NOT_CONVERTED:  # the tests of this model fail, no others
            (root / f"{name}.refusal.txt").write_text(f"{why}\n{done.stderr}")


def without_peaks(model: tiny.TinyModel) -> tiny.TinyModel:
    """Return the model with smaller scores, whose softmax enlarges rounding errors less."""
    wide = ("q_proj.weight", "k_proj.weight")
    weights = {
        name: weight / np.float32(1.6) if name.endswith(wide) else weight
        for name, weight in model.weights.items()
    }
    return replace(model, weights=weights)
