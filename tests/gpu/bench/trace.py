"""Records GPU activity while a stream decodes, with torch's profiler.

The profiler sees the work of the process, including the kernels in our graphs. Recording makes
launches slower and spreads kernels a little, so `step_p50_us` is reported with `untraced_step_us`,
measured on the same stream just before.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, supported_activities

import sinkstream
from tests.gpu.bench.limits import LeftOut
from tests.gpu.bench.notes import Values
from tests.gpu.bench.rates import wait_for_step
from tests.gpu.bench.sizes import SAMPLINGS, Trace
from tests.gpu.bench.timeline import Record, as_trace, divide, read_trace, summarize
from tests.gpu.sizes import IS_REHEARSAL
from tests.gpu.streams import prompt

_KEPT = 12  # steps in the trace file
_WARM_STEPS = 4


def measure_trace(model: sinkstream.Model, figure: Trace, kept: Path) -> Values:
    """Record a stream while it is read; write a part to `kept` as a Chrome trace."""
    if not can_record() and not IS_REHEARSAL:
        raise LeftOut("torch's profiler sees no GPU here")
    if can_record():
        profiled(lambda: torch.ones(8, device="cuda").sum().item())  # the first use is slow
    stream = model.stream(
        prompt(max(figure.live - figure.steps, 1)), ignore_eos=True, **SAMPLINGS[figure.sampling]
    )
    reader = threading.Thread(target=stream.result)
    with stream:
        reader.start()
        try:
            step, began = wait_for_step(model, model.stats()["steps"] + _WARM_STEPS)
            after, ended = wait_for_step(model, step["steps"] + figure.steps)

            def decode() -> None:
                wait_for_step(model, model.stats()["steps"] + figure.steps)

            records = profiled(decode) if can_record() else simulated(figure.steps)
            live = stream.stats.live_tokens
        finally:
            stream.cancel()
            reader.join()
    if not records:
        raise RuntimeError("trace: torch's profiler recorded nothing on the GPU")
    keep(records, kept)
    return {
        "untraced_step_us": 1e6 * (ended - began) / (after["steps"] - step["steps"]),
        "live_tokens": live,
        "is_simulated": not can_record(),
        **summarize(records),
    }


def can_record() -> bool:
    """Return whether torch's profiler sees a GPU."""
    return torch.cuda.is_available() and ProfilerActivity.CUDA in supported_activities()


def profiled(work: Callable[[], object]) -> list[Record]:
    """Run `work` and return what ran on the GPU meanwhile."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return read_trace(json.loads(path.read_text(encoding="utf-8")))


def keep(records: list[Record], path: Path) -> None:
    """Write a few steps as a Chrome trace, some hundred kilobytes."""
    some = [record for step in divide(records)[:_KEPT] for record in step]
    path.write_text(json.dumps(as_trace(some)), encoding="utf-8")


def simulated(steps: int) -> list[Record]:
    """Return simulated records, for a rehearsal without a GPU."""
    names = ("embedding_kernel", "linear_kernel<1>", "logits_kernel", "sample_kernel")
    return [
        Record(name, begin := 100.0 * step + 20.0 * number, begin + 15)
        for step in range(steps + 2)
        for number, name in enumerate(names)
    ]
