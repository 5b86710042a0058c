"""What torch reaches on this GPU in the same run: the ceilings that figures are shares of.

In a rehearsal the CPU copies, reads and multiplies.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from tests.gpu.bench.notes import Values
from tests.gpu.bench.sizes import Copy, Product, Read

_WARM_S = 0.3  # until the GPU's clocks are up
_ROUNDS = 11
_REPEATS = 5  # per round


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
