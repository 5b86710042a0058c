"""Models that share the embedding with the output head, or only say so."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import sinkstream
from sinkstream.errors import CheckpointError
from sinkstream.loading.open_checkpoint import open_checkpoint
from tests.data import tiny
from tests.reference.oracle import Oracle

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

Change = Callable[[dict[str, torch.Tensor]], None]


def write(folder: Path, change: Change, *, shards: int = 1, dtype: str = "F32") -> Path:
    """Write a tiny qwen2, which says that it is tied, with other tensors."""
    model = tiny.build("qwen2")
    assert model.config["tie_word_embeddings"]
    weights = {name: torch.from_numpy(value.copy()) for name, value in model.weights.items()}
    change(weights)
    as_numpy = {name: value.numpy() for name, value in weights.items()}
    changed = tiny.TinyModel("qwen2", model.config, as_numpy, model.tokenizer)
    return tiny.write_folder(changed, folder, shards=shards, dtype=dtype)


def equal(weights: dict[str, torch.Tensor]) -> None:
    weights[HEAD] = weights[EMBEDDING].clone()


def unequal(weights: dict[str, torch.Tensor]) -> None:
    weights[HEAD] = weights[EMBEDDING] * 1.25


def unequal_in_the_last_number(weights: dict[str, torch.Tensor]) -> None:
    equal(weights)
    weights[HEAD][-1, -1] += 1


def head_only(weights: dict[str, torch.Tensor]) -> None:
    weights[HEAD] = weights.pop(EMBEDDING)


def shared(weights: dict[str, torch.Tensor]) -> None:
    """Leave the model as it is."""


IDS = [5, 9, 200, 31, 7]


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    ("change", "is_tied"),
    [
        (shared, True),
        (equal, True),
        (unequal, False),
        (unequal_in_the_last_number, False),
        (head_only, True),
    ],
)
def test_the_logits_are_those_of_transformers(
    tmp_path: Path, change: Change, is_tied: bool, shards: int
) -> None:
    folder = write(tmp_path / "m", change, shards=shards)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = sinkstream.load(folder, threads=1, dtype="float32", kv_dtype="float32")
    with model:
        assert model.spec.tie_embeddings is is_tied
        found = model.forward(torch.tensor([IDS]))[0].numpy()
    np.testing.assert_allclose(found, Oracle(folder).logits(IDS), atol=2e-4, rtol=1e-4)
    assert [str(warning.message) for warning in caught] == (
        []
        if is_tied
        else [
            "load: m: `tie_word_embeddings` should be false if tensor lm_head.weight exists and "
            "differs from model.embed_tokens.weight, but is true. The model uses lm_head.weight."
        ]
    )


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
@pytest.mark.parametrize(("change", "is_tied"), [(equal, True), (unequal, False)])
@pytest.mark.filterwarnings("ignore:load. m. `tie_word_embeddings`")
def test_heads_of_half_precision_are_compared(
    tmp_path: Path, change: Change, is_tied: bool, dtype: str
) -> None:
    checkpoint = open_checkpoint(write(tmp_path / "m", change, dtype=dtype))
    assert checkpoint.spec.tie_embeddings is is_tied
    checkpoint.source.close()


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.filterwarnings("ignore:load. m. `tie_word_embeddings`")
def test_a_head_of_another_type_is_compared_by_its_numbers(
    tmp_path: Path, kind: torch.dtype, is_tied: bool
) -> None:
    folder = write(tmp_path / "m", shared)
    drawn = tiny.build("qwen2").weights
    weights = {name: torch.from_numpy(value) for name, value in drawn.items()}
    rounded = weights[EMBEDDING].to(kind)
    weights |= {EMBEDDING: rounded.float() if is_tied else weights[EMBEDDING], HEAD: rounded}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    checkpoint = open_checkpoint(folder)
    assert checkpoint.spec.tie_embeddings is is_tied
    checkpoint.source.close()


@pytest.mark.filterwarnings("ignore:load. m. `tie_word_embeddings`")
def test_a_head_of_another_shape_is_an_error(tmp_path: Path) -> None:
    def longer(weights: dict[str, torch.Tensor]) -> None:
        weights[HEAD] = torch.zeros(308, 96)

    with pytest.raises(CheckpointError, match=r'"lm_head.weight" must have shape \[307, 96\], b'):
        open_checkpoint(write(tmp_path / "m", longer))


def test_a_head_that_is_missing_is_an_error_without_the_flag(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", shared)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    with pytest.raises(CheckpointError, match=r'tensor "lm_head.weight" of .* is missing'):
        open_checkpoint(folder)


def test_a_failed_opening_leaves_no_file_open(tmp_path: Path) -> None:
    def damaged(weights: dict[str, torch.Tensor]) -> None:
        head_only(weights)
        weights.pop("model.norm.weight")

    folder = write(tmp_path / "m", damaged, shards=3)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(CheckpointError, match=r"model\.norm\.weight"):
            open_checkpoint(folder)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
