"""What `Model.forward` and its caches refuse, and that memory does not grow after loading."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import sinkstream

Folder = Callable[[str], Path]


def load(path: Path, **options: Any) -> sinkstream.Model:
    return sinkstream.load(path, **{"window": 60, "sinks": 4, "threads": 1, **options})


def test_the_cache_of_another_model_is_refused(tiny_folder: Folder) -> None:
    ids = torch.zeros(1, 3, dtype=torch.int64)
    with (
        load(tiny_folder("llama"), kv_dtype="float32") as model,
        load(tiny_folder("llama"), kv_dtype="bfloat16") as finer,
        load(tiny_folder("llama-one-layer")) as shallow,
    ):
        for other in (finer, shallow):
            cache = other.new_cache()
            with pytest.raises(sinkstream.InvalidArgument, match="forward: `cache` must have been"):
                model.forward(ids, cache)
            other.forward(ids, cache)  # still works


def test_capacity_says_all_that_is_ever_taken(tiny_folder: Folder) -> None:
    with load(tiny_folder("llama"), threads=2) as model:
        at_load = model.capacity
        model.generate([1, 2, 3], max_tokens=200, ignore_eos=True)
        model.forward(torch.ones(1, 3000, dtype=torch.int64))
        model.forward(torch.ones(1, 1, dtype=torch.int64), model.new_cache(window=5000))
        assert model.capacity == at_load


@pytest.mark.parametrize("window", [1, 63, 64, 65, 128])
def test_a_stream_may_have_any_sinks_that_leave_it_a_window(
    window: int, tiny_folder: Folder
) -> None:
    with load(tiny_folder("llama"), sinks=0, window=window, max_sequences=2) as model:
        for sinks in {0, min(1, window - 1), window // 2, window - 1}:
            streams = [
                model.stream([1, 2, 3], max_tokens=5, ignore_eos=True, sinks=sinks)
                for _ in range(2)
            ]
            assert [stream.result().finish_reason for stream in streams] == ["length", "length"]


def test_an_interrupt_ends_a_long_forward_and_keeps_what_was_read(tiny_folder: Folder) -> None:
    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stop

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with load(tiny_folder("llama"), prefill_chunk=1, window=2000) as model:
            cache = model.new_cache()
            ids = torch.ones(1, 200_000, dtype=torch.int64)
            main = threading.main_thread().ident
            assert main is not None
            timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGUSR1))
            timer.start()
            started = time.monotonic()
            with pytest.raises(Stop):
                model.forward(ids, cache)
            assert time.monotonic() - started < 20  # minutes without a check for signals
            assert 0 < cache.length < 200_000
            model.forward(ids[:, :3], cache)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_threads_that_the_system_does_not_give_are_an_error(tiny_folder: Folder) -> None:
    script = f"""
import importlib, resource, sinkstream
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (2 << 30), resource.RLIM_INFINITY))
try:
    importlib.import_module("sinkstream.loading.load")._MOST_THREADS = 1024
    sinkstream.load({str(tiny_folder("llama"))!r}, threads=1024)
except sinkstream.CapacityError as error:
    print(error)
"""
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    assert found.stdout.startswith("load: the system started only ")
    assert "Choose fewer `threads`." in found.stdout


def test_a_closed_model_has_given_its_memory_back(smollm2: Path) -> None:
    def resident() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.split("RssAnon:")[1].split()[0]) * 1024

    model = sinkstream.load(smollm2, window=2044)
    stream = model.stream("Once upon a time", max_tokens=3)
    before = resident()
    model.close()
    held = model.capacity.weight_bytes + model.capacity.cache_bytes
    assert before - resident() > 0.9 * held
    assert stream.result().finish_reason in ("length", "cancelled")
    with pytest.raises(sinkstream.EngineDead):
        model.forward(torch.zeros(1, 1, dtype=torch.int64))
