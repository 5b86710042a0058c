"""A folder and what llama.cpp's converter makes of it are one model, in every family.

The converter permutes, splits and fuses rows, adds constants and names things in its own way.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

import sinkstream
from tests.data import tiny
from tests.data.family_configs import FAMILY_CONFIGS, NOT_CONVERTED

TOKENS = 100  # more than any layer's own window
WINDOW = 300  # with it, the capacity is more than what one of the longropes was trained for
TOLERANCE = 1e-6  # relative to a text's largest logit

# Files of these architectures do not name the layers' own windows: texts are as short as these.
SHORT_TEXTS = {
    "mistral-windows": 40,
    "mixtral-windows": 40,
    "qwen2-windows": 32,
    "qwen3-all-windows": 32,
    "smollm3-windows": 32,
    "starcoder2": 40,
}


@pytest.mark.filterwarnings("ignore:load. .*for images or sound")
@pytest.mark.parametrize("name", [*tiny.CONFIGS, *FAMILY_CONFIGS])
def test_a_converted_folder_is_the_same_model(name: str, converted: Path, threads: int) -> None:
    file = converted / f"{name}.gguf"
    if name in NOT_CONVERTED:
        assert not file.exists()
        pytest.skip(NOT_CONVERTED[name])
    expected = logits_of(converted / name, name, threads)
    difference = np.abs(logits_of(file, name, threads) - expected).max()
    assert difference <= TOLERANCE * np.abs(expected).max()


def logits_of(path: Path, name: str, threads: int) -> npt.NDArray[np.float32]:
    with sinkstream.load(
        path, dtype="float32", kv_dtype="float32", window=WINDOW, threads=threads
    ) as model:
        tokens = SHORT_TEXTS.get(name, TOKENS)
        drawn = np.random.default_rng(tokens).integers(0, model.spec.vocab_size, (1, tokens))
        return model.forward(torch.from_numpy(drawn))[0].numpy()
