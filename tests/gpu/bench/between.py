"""Times between the tokens of one long stream at its reader, compared with an empty loop."""

from __future__ import annotations

import itertools
import time
from array import array
from collections.abc import Sequence

import sinkstream
from benchmarks.figures import quantile
from benchmarks.noise import empty_loops, loop_iterations
from tests.gpu.bench.notes import Values
from tests.gpu.bench.sizes import Between
from tests.gpu.streams import prompt

_SHARE = 0.85  # of the limit, for the stream; the rest is for empty loops


def quantiles(milliseconds: Sequence[float]) -> Values:
    """Return the quantiles of a series of times."""
    p50, p99 = quantile(milliseconds, 0.5), quantile(milliseconds, 0.99)
    return {
        "count": len(milliseconds),
        "p50_ms": p50,
        "p99_ms": p99,
        "p99_over_p50": p99 / p50,
        "longest_ms": max(milliseconds),
    }


def measure_between(model: sinkstream.Model, figure: Between) -> Values:
    """Read a stream that starts with an empty cache, which fills and wraps many times."""
    end = time.perf_counter() + _SHARE * figure.limit_s
    stamps = array("d")
    with model.stream(
        prompt(16), max_tokens=figure.tokens + 1, temperature=0, ignore_eos=True
    ) as stream:
        for event in stream.events():
            if isinstance(event, sinkstream.Token):
                stamps.append(time.perf_counter())
                if stamps[-1] > end:
                    break
        evicted = stream.stats.evicted_tokens
    gaps = [1000 * (later - earlier) for earlier, later in itertools.pairwise(stamps)]
    if evicted <= model.capacity.window:
        raise RuntimeError(f"between tokens: {evicted} evicted tokens are not more than a window")
    found = quantiles(gaps)
    loops = empty_loops(loop_iterations(found["p50_ms"]), figure.loops)
    return {
        **found,
        "asked_for": figure.tokens,
        "evicted_tokens": evicted,
        "empty loop": quantiles(loops),
    }
