"""The default window follows the trained length, and the memory only where that is short."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream import devices
from sinkstream.checkpoint.open_tensors import open_tensors
from sinkstream.loading import default_window
from sinkstream.loading.default_window import (
    bytes_per_token,
    choose_window,
    default_capacity,
    packed_bytes,
)
from sinkstream.loading.load import check_options

ENDLESS = 1 << 60


@pytest.fixture(scope="module")
def opened(tiny_folder: Callable[[str], Path]) -> Any:
    found = open_tensors(tiny_folder("llama"), headers_only=True)
    found.source.close()
    return found


def capacity(opened: Any, trained: int, free: int, **options: Any) -> int:
    spec = replace(opened.spec, trained_length=trained)
    return default_capacity(check_options(**options), spec, opened.tensors, free)


@pytest.mark.parametrize("trained", [100, 2048, 4096, 6000, 8192, 131_072])
def test_where_memory_suffices_it_is_the_trained_length(opened: Any, trained: int) -> None:
    assert capacity(opened, trained, ENDLESS) == trained
    assert capacity(opened, trained, ENDLESS, sinks=90, max_sequences=500) == trained


@pytest.mark.parametrize(
    ("trained", "expected"),
    [(100, 100), (4096, 4096), (6000, 6000), (8192, 4096), (131_072, 4096), (10_000, 5000)],
)
def test_without_any_memory_it_is_at_least_4096_or_the_trained_length(
    opened: Any, trained: int, expected: int
) -> None:
    assert capacity(opened, trained, 0) == expected


def test_it_is_halved_until_the_caches_take_a_quarter_of_what_the_weights_leave(
    opened: Any,
) -> None:
    weights = sum(map(packed_bytes, opened.tensors))
    per_token = bytes_per_token(opened.spec, "auto")
    trained = 1 << 17

    def free(tokens: int, sequences: int) -> int:
        """Return memory for some tokens, and for the pages that a window moves over."""
        return weights + 4 * sequences * (tokens + 192) * per_token

    for sequences in (1, 2, 8):
        for size in (trained, trained // 2, trained // 8):
            enough = free(size, sequences)
            assert capacity(opened, trained, enough, max_sequences=sequences) == size
            short = weights + 4 * sequences * size * per_token
            assert capacity(opened, trained, short, max_sequences=sequences) == size // 2
    found = [capacity(opened, trained, size << 20) for size in range(0, 4000, 50)]
    assert found == sorted(found)
    assert set(found) <= {trained >> shift for shift in range(6)}


def test_a_smaller_cache_type_and_layers_with_windows_leave_room_for_more(
    opened: Any, tiny_folder: Callable[[str], Path]
) -> None:
    free = sum(map(packed_bytes, opened.tensors)) + 4 * 2 * 30_000 * bytes_per_token(
        opened.spec, "float16"
    )
    kinds = ("float32", "float16", "int8")
    assert [capacity(opened, 1 << 16, free, kv_dtype=kind) for kind in kinds] == [
        8192, 16_384, 32_768
    ]  # fmt: skip


def test_load_measures_what_is_free(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default_window, "LEAST", 300)
    monkeypatch.setattr(devices, "available_bytes", lambda: 0)
    with sinkstream.load(tiny_folder("llama"), sinks=5) as model:
        assert model.capacity.tokens == model.spec.trained_length // 4  # 512, and 256 is below
        assert model.capacity.sinks == 5
    with sinkstream.load(tiny_folder("llama"), window=1500) as model:
        assert model.capacity.window == 1500


def test_a_gpu_that_is_not_there_gets_the_least(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "find_gpu", lambda: "there is none")
    options = check_options(device="cuda")
    spec = replace(opened.spec, trained_length=1 << 16)
    assert choose_window(options, spec, opened.tensors).window == 4092
    gpu = devices.Gpu("one", (9, 0), 1, ENDLESS, ENDLESS, False)
    monkeypatch.setattr(devices, "find_gpu", lambda: gpu)
    assert choose_window(options, spec, opened.tensors).window == (1 << 16) - 4
