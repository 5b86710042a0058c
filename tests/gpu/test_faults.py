"""Failures on a GPU: cancels at any moment, no GPU, no memory."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time

import pytest
import torch

from sinkstream import devices
from sinkstream.errors import CapacityError
from tests.gpu.bench import rates
from tests.gpu.conftest import Load, WriteOnce
from tests.gpu.sizes import IS_REHEARSAL, SIZES
from tests.gpu.streams import SAMPLED, bits, prompt, wait_until_idle


def test_a_storm_of_cancels_leaks_nothing(load: Load) -> None:
    """Streams start and are cancelled at random moments, while another one continues."""
    pause_s = 0.5 if IS_REHEARSAL else 0.02
    with load(max_sequences=8) as model:
        expected = model.stream(prompt(9), **SAMPLED, seed=1).result()
        baseline = wait_until_idle(model)
        neighbours: list[object] = []
        storm_ended = threading.Event()

        def neighbour() -> None:
            while not neighbours or not storm_ended.is_set():
                neighbours.append(bits(model.stream(prompt(9), **SAMPLED, seed=1).result()))

        def cancel_some(seed: int, count: int) -> None:
            draw = random.Random(seed)
            for i in range(count):
                stream = model.stream(prompt(draw.randint(1, 3 * SIZES.window), i), ignore_eos=True)
                time.sleep(draw.uniform(0, pause_s))
                draw.choice((stream.cancel, stream.close))()

        other = threading.Thread(target=neighbour)
        stormers = [
            threading.Thread(target=cancel_some, args=(seed, SIZES.storm // 4)) for seed in range(4)
        ]
        for thread in (other, *stormers):
            thread.start()
        for thread in stormers:
            thread.join()
        storm_ended.set()
        other.join()
        stats = wait_until_idle(model)
        assert not stats["is_dead"]
        assert stats["used_pages"] == baseline["used_pages"] == 0
        assert stats["free_pages"] == stats["pages"]
        assert stats["requests"] == sum(stats["finished"].values())
        assert stats["finished"]["cancelled"] == SIZES.storm // 4 * 4
        assert all(result == bits(expected) for result in neighbours)


@pytest.mark.skipif(IS_REHEARSAL, reason="nothing hides an emulated GPU")
def test_hidden_gpus_are_reported(tiny_folder: WriteOnce) -> None:
    code = "import sinkstream, sys; sinkstream.load(sys.argv[1], device='cuda')"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tiny_folder("llama"))],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert (
        'load: `device` must be "cpu" on this machine, but is "cuda": no GPU is visible. Is '
        "CUDA_VISIBLE_DEVICES set?"
    ) in done.stderr


@pytest.mark.filterwarnings("ignore:load. sinks")
def test_memory_that_the_gpu_lacks_is_a_capacity_error_with_numbers(load: Load) -> None:
    with pytest.raises(CapacityError) as caught:
        load(max_sequences=4096, window=700_000)  # a terabyte of keys and values
    words = str(caught.value)
    assert words.startswith("memory: the GPU cannot allocate ")
    assert " is free" in words
    with load() as model:  # and loading still works
        assert len(model.stream(prompt(3), **SAMPLED).result().token_ids) == SIZES.reply


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no GPU")
def test_captures_of_torch_and_of_an_engine_do_not_disturb_each_other(load: Load) -> None:
    """torch captures in the mode in which another thread's wait or allocation would end it."""
    end = time.monotonic() + 2
    captured, wrong = 0, []
    with load(max_sequences=2) as model:
        expected = bits(model.stream(prompt(9), **SAMPLED, seed=1).result())

        def generate_and_load() -> None:
            while time.monotonic() < end:
                if bits(model.stream(prompt(9), **SAMPLED, seed=1).result()) != expected:
                    wrong.append("a reply")
                load().close()  # allocates, captures graphs, and frees

        other = threading.Thread(target=generate_and_load)
        other.start()
        number = torch.zeros((), device="cuda")
        while time.monotonic() < end:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                number += 1
            graph.replay()
            captured += 1
        other.join()
        torch.cuda.synchronize()
        assert not wrong
        assert captured == int(number) > 0
        assert not model.stats()["is_dead"]


def test_kernels_that_are_all_loaded_at_once_give_the_same_tokens(tiny_folder: WriteOnce) -> None:
    code = (
        "import sinkstream, sys\n"
        "with sinkstream.load(sys.argv[1], device='cuda', window=12) as model:\n"
        "    print(model.stream([3, 4, 5], max_tokens=9, temperature=0, ignore_eos=True)"
        ".result().token_ids)"
    )
    said = {
        mode: subprocess.run(
            [sys.executable, "-c", code, str(tiny_folder("llama"))],
            env=os.environ | {"CUDA_MODULE_LOADING": mode, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for mode in ("EAGER", "LAZY")
    }
    assert said["EAGER"] == said["LAZY"]
    assert said["LAZY"].count(",") == 8


@pytest.mark.skipif(IS_REHEARSAL, reason="an emulated GPU counts no memory")
def test_the_driver_lacks_what_the_plan_says(load: Load) -> None:
    load().close()  # the driver's own memory
    free = rates.free_bytes()
    with load(max_sequences=64, window=4092) as model:
        found = rates.measure_memory(model, free)
        model.stream(prompt(SIZES.text), **SAMPLED).result()
        after = rates.measure_memory(model, free)
    # Graphs and blocks of pinned size come on top, and the driver gives whole 2 MiB.
    assert 0 <= found["driver_bytes"] - found["planned_bytes"] < 256 << 20
    assert after["driver_bytes"] - found["driver_bytes"] < 8 << 20


def test_a_closed_model_gives_its_memory_back(load: Load) -> None:
    def free_bytes() -> int:
        found = devices.find_gpu()
        assert not isinstance(found, str), found
        return found.free_bytes

    def load_and_use() -> int:
        with load(max_sequences=16) as model:
            model.stream(prompt(3), **SAMPLED).result()
        return free_bytes()

    after_first = load_and_use()  # the driver keeps some after the first launches
    after_more = [load_and_use() for _ in range(3)]
    assert min(after_more) >= after_first - (4 << 20)
