"""`benchmarks/latency_bench.py`: a period in a stream's gaps."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.full

BENCH = str(Path(__file__).parents[3] / "benchmarks")


def test_a_slow_offset_of_a_period_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)
    from latency_bench import farthest_median

    gaps = [3.0 if i % 8 == 5 else 2.0 for i in range(80)]
    assert farthest_median(gaps, 8, 2.0) == 1.5
    assert farthest_median(gaps, 7, 2.0) == 1.0
