"""Arithmetic on a GPU's timeline. Knows neither the GPU nor the profiler.

A step is what runs after one sampling kernel until the end of the next. Work may overlap, within a
step and past its end: busy is the time in which anything runs.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.figures import quantile

LOGITS, LAST = "logits_kernel", "sample_kernel"  # parts of kernel names
_FEWEST = 2  # steps
_KINDS = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "set"}


@dataclass(frozen=True, slots=True)
class Record:
    """Something that ran on the GPU, in microseconds of the GPU's clock."""

    name: str
    begin_us: float
    end_us: float
    stream: int = 0
    kind: str = "kernel"  # or "copy", "set"


Step = list[Record]


def read_trace(trace: dict[str, Any]) -> list[Record]:
    """Return the GPU records of a Chrome trace; the host's are ignored."""
    return [
        Record(
            short_name(event["name"]),
            event["ts"],
            event["ts"] + event["dur"],
            event.get("args", {}).get("stream", 0),
            _KINDS[event["cat"]],
        )
        for event in trace["traceEvents"]
        if event.get("ph") == "X" and event.get("cat") in _KINDS
    ]


def as_trace(records: Iterable[Record]) -> dict[str, Any]:
    """Return a trace in Chrome's format."""
    categories = {kind: category for category, kind in _KINDS.items()}
    return {
        "traceEvents": [
            {
                "ph": "X",
                "cat": categories[record.kind],
                "name": record.name,
                "pid": 0,
                "tid": record.stream,
                "ts": record.begin_us,
                "dur": record.end_us - record.begin_us,
                "args": {"stream": record.stream},
            }
            for record in records
        ]
    }


def short_name(name: str) -> str:
    """Return a kernel's name without result type, parameters and our namespaces."""
    for part in ("(anonymous namespace)::", "sinkstream::cuda::"):
        name = name.replace(part, "")
    name = name.removeprefix("void ")
    depth = 0
    for i, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0 and i > 0:
            return name[:i].rstrip()
    return name


def divide(records: Sequence[Record]) -> list[Step]:
    """Return the complete steps, without the first and last, which may be partial."""
    steps: list[Step] = [[]]
    for record in sorted(records, key=lambda record: record.begin_us):
        steps[-1].append(record)
        if LAST in record.name:
            steps.append([])
    return steps[1:-1]


def end_of(step: Step) -> float:
    """Return when the last of a step's records ended."""
    return max(record.end_us for record in step)


def busy_us(records: Iterable[Record], begin: float, end: float) -> float:
    """Return how long anything ran between two times."""
    busy, reached = 0.0, begin
    for record in sorted(records, key=lambda record: record.begin_us):
        until = min(record.end_us, end)
        busy += max(until - max(record.begin_us, reached), 0.0)
        reached = max(reached, until)
    return busy


def kernels_us(steps: Sequence[Step]) -> dict[str, float]:
    """Return the microseconds per step in each kernel, longest first."""
    sums: defaultdict[str, float] = defaultdict(float)
    for record in itertools.chain.from_iterable(steps):
        sums[record.name] += record.end_us - record.begin_us
    return {
        name: total / len(steps)
        for name, total in sorted(sums.items(), key=lambda item: item[1], reverse=True)
    }


def sampling_us(step: Step) -> float:
    """Return the time from the start of `logits` to the end of `sample`."""
    sampling = [record for record in step if LOGITS in record.name or LAST in record.name]
    return end_of(sampling) - min(record.begin_us for record in sampling)


def summarize(records: Sequence[Record]) -> dict[str, Any]:
    """Return statistics of a steady decode on the GPU.

    Raises:
        ValueError: There are too few complete steps.
    """
    steps = divide(records)
    if len(steps) < _FEWEST:
        raise ValueError(
            f"timeline: {len(records)} records must contain {_FEWEST} complete steps, but contain "
            f"{len(steps)}; a step ends with {LAST}."
        )
    ends = [end_of(step) for step in steps]
    gaps, inside = [], []
    for before, step, end in zip(ends, steps[1:], ends[1:], strict=False):
        begin = step[0].begin_us
        gaps.append(max(begin - before, 0.0))
        inside.append(end - begin - busy_us(step, begin, end))
    span = ends[-1] - ends[0]
    busy = busy_us(itertools.chain.from_iterable(steps), ends[0], ends[-1])
    periods = [later - earlier for earlier, later in itertools.pairwise(ends)]
    return {
        "steps": len(steps),
        "streams": len({record.stream for step in steps for record in step}),
        "records_per_step": statistics.median(len(step) for step in steps),
        "step_p50_us": statistics.median(periods),
        "step_p99_us": quantile(periods, 0.99),
        "busy_us": busy / len(periods),
        "busy_share": busy / span,
        "gap_p50_us": statistics.median(gaps),
        "gap_p99_us": quantile(gaps, 0.99),
        "idle_inside_p50_us": statistics.median(inside),
        "sampling_p50_us": statistics.median(map(sampling_us, steps)),
        "sampling_p99_us": quantile([sampling_us(step) for step in steps], 0.99),
        "kernels_us": kernels_us(steps),
    }
