"""What torch reaches on this GPU in the same run: the ceilings that figures are shares of.

In a rehearsal the CPU copies, reads and multiplies.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from tests.gpu.bench.notes import Values
from tests.gpu.bench.sizes import Argmax, Copy, Product, Read, Replay

_WARM_S = 0.3  # until the GPU's clocks are up
_ROUNDS = 11
_REPEATS = 5  # per round
_REPLAYS = 200  # in succession


def device() -> str:
    """Return where torch computes."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def wait() -> None:
    """Wait until the GPU has finished torch's work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds_of(work: Callable[[], object]) -> float:
    """Return the median time of `work`."""
    seconds = []
    end = time.perf_counter() + _WARM_S
    while time.perf_counter() < end:
        work()
        wait()
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        for _ in range(_REPEATS):
            work()
        wait()
        seconds.append((time.perf_counter() - started) / _REPEATS)
    return statistics.median(seconds)


def copy(figure: Copy) -> Values:
    """Measure a copy."""
    source = torch.randint(0, 127, (figure.count,), dtype=torch.int8, device=device())
    goal = torch.empty_like(source)
    return {"bytes_per_s": 2 * figure.count / seconds_of(lambda: goal.copy_(source))}


def read(figure: Read) -> Values:
    """Measure a sum."""
    numbers = torch.rand(figure.count // 4, device=device())
    return {"bytes_per_s": figure.count / seconds_of(numbers.sum)}


def product(figure: Product) -> Values:
    """Measure a product of random numbers: zeros would use less power and be faster."""
    shape = (figure.side, figure.side)
    left = torch.randn(shape, device=device()).to(torch.bfloat16)
    right = torch.randn(shape, device=device()).to(torch.bfloat16)
    seconds = seconds_of(lambda: left @ right)
    return {"flops_per_s": 2 * figure.side**3 / seconds, "side": figure.side}


def as_graph(work: Callable[[], object], repeats: int) -> Callable[[], object]:
    """Return what replays a graph of `repeats` calls of `work`; in a rehearsal, what calls them."""
    if not torch.cuda.is_available():
        return lambda: [work() for _ in range(repeats)]
    for _ in range(3):  # the first calls allocate
        work()
    wait()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            work()
    return graph.replay


def replay(figure: Replay) -> Values:
    """Measure graphs of one small kernel: how fast they can follow each other."""
    numbers = torch.zeros(8, device=device())
    graph = as_graph(lambda: numbers.add_(1), 1)
    return {"us": 1e6 * seconds_of(lambda: [graph() for _ in range(_REPLAYS)]) / _REPLAYS}


def argmax(figure: Argmax) -> Values:
    """Measure one pass over logits, without the time to launch it."""
    logits = torch.randn(figure.count, device=device())
    out = torch.empty((), dtype=torch.int64, device=device())
    graph = as_graph(lambda: torch.argmax(logits, out=out), _REPLAYS)
    return {"us": 1e6 * seconds_of(graph) / _REPLAYS, "count": figure.count}
