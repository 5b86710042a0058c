"""Measures one job, in a process started by `python -m tests.gpu.bench`.

python -m tests.gpu.bench.job NUMBER NOTES --models FOLDER --traces FOLDER --limit-s 60
"""

from __future__ import annotations

import argparse
import importlib.util
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

import sinkstream
from sinkstream import devices
from tests.gpu.bench import between, ceilings, rates, trace
from tests.gpu.bench.limits import LeftOut, OutOfTime, at_most
from tests.gpu.bench.notes import Notes, Values
from tests.gpu.bench.sizes import (
    FULL,
    GPU,
    PEER,
    SHORT,
    SINKS,
    Argmax,
    Between,
    Copy,
    Figure,
    Job,
    Memory,
    Prefill,
    Product,
    Rate,
    Read,
    Replay,
    Trace,
)
from tests.gpu.sizes import IS_REHEARSAL

WRITE_S, LOAD_S = 120.0, 120.0


class Runner:
    """Measures figures one by one, each within its limit; a failure does not stop the next."""

    def __init__(self, notes: Notes, limit_s: float) -> None:
        self._notes = notes
        self._end = time.monotonic() + limit_s

    def measure(self, name: str, limit_s: float, work: Callable[[], Values]) -> bool:
        """Measure one figure, and return whether it succeeded."""
        limit_s = min(limit_s, self._end - time.monotonic())
        if limit_s < 1:
            self._notes.add("left out", name, "no time left")
            return False
        self._notes.add("begun", name)
        try:
            with at_most(limit_s):
                values = work()
        except OutOfTime:
            self._notes.add("failed", name, f"it took longer than {limit_s:.0f} s")
        except LeftOut as reason:
            self._notes.add("left out", name, str(reason))
        except Exception as error:
            traceback.print_exc()
            self._notes.add("failed", name, f"{type(error).__name__}: {error}")
        else:
            self._notes.add("found", name, values)
            return True
        return False

    def leave_out(self, figures: tuple[Figure, ...], reason: str) -> None:
        """Record why these figures are not started."""
        for figure in figures:
            self._notes.add("left out", figure.name, reason)


def measure_gpu(job: Job, runner: Runner) -> None:
    """Identify the GPU, and measure its ceilings."""

    def look() -> Values:
        gpu = devices.find_gpu()
        if isinstance(gpu, str):
            raise RuntimeError(gpu)
        return asdict(gpu)

    if not runner.measure("gpu", 30, look):
        return runner.leave_out(job.figures, "there is no GPU")
    if not torch.cuda.is_available() and not IS_REHEARSAL:
        return runner.leave_out(job.figures, "torch has no CUDA here")
    kinds: dict[type, Callable[[Any], Values]] = {
        Copy: ceilings.copy,
        Read: ceilings.read,
        Product: ceilings.product,
        Replay: ceilings.replay,
        Argmax: ceilings.argmax,
    }
    for figure in job.figures:
        runner.measure(figure.name, figure.limit_s, partial(kinds[type(figure)], figure))
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def measure_model(job: Job, runner: Runner, models: Path, traces: Path) -> None:
    """Write a model if it is missing, load it, and measure it."""
    loaded: list[sinkstream.Model] = []
    free_before = 0

    def write() -> Values:
        from benchmarks import random_gguf

        path = random_gguf.write(job.shape, job.kind, models)
        return {"bytes": path.stat().st_size}

    def load() -> Values:
        nonlocal free_before
        free_before = rates.free_bytes()  # with the driver's own memory for this process
        path = models / f"{job.shape}-{job.kind}.gguf"
        started = time.perf_counter()
        model = sinkstream.load(
            path,
            device="cuda",
            sinks=SINKS,
            window=job.window,
            kv_dtype=job.kv_dtype,
            max_sequences=job.max_sequences,
        )
        loaded.append(model)
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "runtime": model.runtime, "capacity": asdict(model.capacity)}

    def record(model: sinkstream.Model, figure: Trace) -> Values:
        name = f"trace {job.subject} {figure.sampling}".replace(" ", "-")
        return trace.measure_trace(model, figure, traces / f"{name}.json")

    if not runner.measure("file", WRITE_S, write) or not runner.measure("load", LOAD_S, load):
        return runner.leave_out(job.figures, "the model is not loaded")
    kinds: dict[type, Callable[[sinkstream.Model, Any], Values]] = {
        Rate: rates.measure_rate,
        Prefill: rates.measure_prefill,
        Memory: lambda model, _: rates.measure_memory(model, free_before),
        Trace: record,
        Between: between.measure_between,
    }
    with loaded[0] as model:
        for figure in job.figures:
            work = partial(kinds[type(figure)], model, figure)
            runner.measure(figure.name, figure.limit_s, work)


def measure_peers(job: Job, runner: Runner) -> None:
    """Build a transformers model, and measure its methods."""
    if not torch.cuda.is_available() and not IS_REHEARSAL:
        return runner.leave_out(job.figures, "torch has no CUDA here")
    built: list[Any] = []

    def build() -> Values:
        if importlib.util.find_spec("transformers") is None:
            raise LeftOut("transformers is not installed")
        import transformers

        from tests.gpu.bench import peers

        built.append(peers.build(job.shape))
        return {
            "versions": f"transformers {transformers.__version__}, torch {torch.__version__}",
            "attention": built[0].config._attn_implementation,
        }

    def measure(figure: Any) -> Values:
        from tests.gpu.bench import peers

        return peers.measure_peer(built[0], figure)

    if not runner.measure("build", LOAD_S, build):
        return runner.leave_out(job.figures, "the model is not built")
    for figure in job.figures:
        runner.measure(figure.name, figure.limit_s, partial(measure, figure))


def main() -> None:
    """Measure the requested job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("number", type=int, help="of the job, in sizes.py")
    parser.add_argument("notes", type=Path)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--limit-s", type=float, required=True)
    parser.add_argument("--only", default="", help="words; see the program that starts this")
    args = parser.parse_args()
    job = (SHORT if IS_REHEARSAL else FULL)[args.number].only(args.only)
    runner = Runner(Notes(args.notes, job.subject), args.limit_s)
    if job.subject == GPU:
        measure_gpu(job, runner)
    elif job.subject.startswith(PEER):
        measure_peers(job, runner)
    else:
        measure_model(job, runner, args.models, args.traces)


if __name__ == "__main__":
    main()
