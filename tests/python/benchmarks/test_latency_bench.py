"""`benchmarks/latency_bench.py`: the statistics of a stream's gaps."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.full

BENCH = str(Path(__file__).parents[3] / "benchmarks")


def test_shifting_steps_are_compared_with_the_median(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)
    from latency_bench import Series

    gaps = [2.0] * 20
    gaps[7], gaps[14] = 3.0, 5.0
    found = Series("llama.cpp", gaps, [7, 14]).figures()
    assert (found["shifts"], found["median_shift_over_p50"]) == (2, 2.0)
    assert "shifts" not in Series("sinkstream", gaps).figures()
