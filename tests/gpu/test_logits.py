"""Complete models on the GPU match the CPU's logits, far past the window."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.data import quantized_folders, tiny
from tests.gpu.conftest import Load
from tests.gpu.sizes import EXPERTS, IS_REHEARSAL, KINDS, SINKS, SIZES
from tests.gpu.streams import TOLERANCE, error_of, prompt

TEXT = torch.tensor([prompt(SIZES.text)])


def difference(load: Load, model: str | Path, ids: torch.Tensor, kv_dtype: str) -> float:
    with load(model, kv_dtype=kv_dtype) as gpu, load(model, kv_dtype=kv_dtype, device="cpu") as us:
        assert gpu.runtime["device"] == "cuda"
        got, expected = gpu.new_cache(), us.new_cache()
        error = error_of(gpu.forward(ids, got), us.forward(ids, expected))
        assert got.evicted == expected.evicted == ids.shape[1] - SINKS - SIZES.window
    return error


@pytest.mark.parametrize("kv_dtype", SIZES.cache_types)
@pytest.mark.parametrize("name", SIZES.names)
def test_the_logits_are_the_processors(load: Load, name: str, kv_dtype: str) -> None:
    assert difference(load, name, TEXT, kv_dtype) < TOLERANCE


@pytest.mark.parametrize("storage", tiny.STORAGES[1:] if not IS_REHEARSAL else ())
def test_the_logits_are_the_processors_for_weights_of(
    load: Load, tmp_path: Path, storage: str
) -> None:
    pytest.importorskip("gguf")
    model = tiny.build(tiny.model_for(storage))
    path = tiny.write_gguf(model, tmp_path / "model.gguf", storage)
    assert difference(load, path, TEXT, "float16") < TOLERANCE


@pytest.mark.parametrize(
    "scheme",
    quantized_folders.SCHEMES[:: 8 if IS_REHEARSAL else 1],
    ids=lambda scheme: scheme.name,
)
def test_the_logits_are_the_processors_for_a_quantized_folder(
    load: Load, tmp_path: Path, scheme: quantized_folders.Scheme
) -> None:
    quantized_folders.write(scheme, tmp_path)
    assert difference(load, tmp_path, TEXT, "float16") < TOLERANCE


@pytest.mark.parametrize("family", EXPERTS)
def test_the_logits_of_experts_are_the_processors(load: Load, tmp_path: Path, family: str) -> None:
    """Where no router is near a tie, which may be decided otherwise."""
    pytest.importorskip("transformers")
    from tests.data.family_models import save_family

    save_family(family, tmp_path)
    with load(tmp_path) as gpu, load(tmp_path, device="cpu") as us:
        got, expected = gpu.forward(TEXT, gpu.new_cache()), us.forward(TEXT, us.new_cache())
    errors = (got - expected).abs().amax(-1) / expected.abs().max()
    assert (errors < TOLERANCE).float().mean() > 0.7


@pytest.mark.parametrize("kind", KINDS if not IS_REHEARSAL else ())
def test_the_logits_are_the_processors_in_the_shapes_of_smollm2(
    load: Load, tmp_path: Path, kind: str
) -> None:
    pytest.importorskip("gguf")
    from benchmarks.random_gguf import write

    path = write("smollm2-135m", kind, tmp_path)
    assert difference(load, path, TEXT[:, :700], "float16") < TOLERANCE


@pytest.mark.parametrize("shape", ["heads-96", "heads-256", "hidden-12288"])
def test_the_logits_are_the_processors_where_kernels_meet_their_limits(
    load: Load, tmp_path: Path, shape: str
) -> None:
    """Heads of 96 and 256; a row of 12,288 needs nearly all shared memory of the default limit."""
    pytest.importorskip("gguf")
    from benchmarks.random_gguf import write

    path = write(shape, "BF16", tmp_path)
    tokens = 24 if IS_REHEARSAL else 700
    assert difference(load, path, TEXT[:, :tokens], "float16") < TOLERANCE


def test_the_logits_are_the_processors_without_a_window(load: Load) -> None:
    ids = TEXT[:, :300]
    with load() as gpu, load(device="cpu") as us:
        assert error_of(gpu.forward(ids), us.forward(ids)) < TOLERANCE


@pytest.mark.parametrize("kv_dtype", SIZES.cache_types)
def test_a_cut_from_the_middle_turns_keys_as_the_processor_does(load: Load, kv_dtype: str) -> None:
    ids = TEXT[:, : 2 * SIZES.window + 9]
    logits, live = [], []
    for device in ("cuda", "cpu"):
        with load(device=device, kv_dtype=kv_dtype) as model:
            cache = model.new_cache()
            model.forward(ids, cache)
            cache.evict_range(SIZES.window // 2, SIZES.window // 2 + 5)
            live.append(cache.live)
            logits.append(model.forward(ids[:, :11], cache))
    assert live[0] == live[1] < SINKS + SIZES.window
    assert error_of(*logits) < TOLERANCE
