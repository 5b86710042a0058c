"""`tests/bench/noise_bench.py`: whose late tokens are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Give the program as a module."""
    monkeypatch.syspath_prepend(str(BENCH))
    import noise_bench

    return noise_bench


def test_tokens_late_with_the_machine_are_in_the_last_quarter(bench: ModuleType) -> None:
    quiet = bench.Turn([2.0] * 6, [3.0] * 6, [4.0] * 10)
    slow = bench.Turn([2.0] * 6, [3.0] * 3 + [4.0] * 3, [4.0] * 5 + [6.0] * 5)
    rows = bench.by_slowness([quiet] * 31 + [slow] * 10, parts=4)
    assert [row["count"] for row in rows] == [100] * 4
    assert [row["p99_over_p50"] for row in rows[:3]] == [1.0] * 3
    assert rows[3]["p99_over_p50"] == 1.5
    assert [row["slowness_at_most"] for row in rows] == [1.0, 1.0, 1.0, 1.167]


def test_tokens_late_by_themselves_are_in_all_quarters(bench: ModuleType) -> None:
    quiet = bench.Turn([2.0] * 6, [3.0] * 6, [4.0] * 9 + [6.0])
    slow = bench.Turn([2.5] * 6, [3.0] * 6, [4.0] * 9 + [6.0])
    rows = bench.by_slowness([quiet] * 31 + [slow] * 10, parts=4)
    assert [row["p99_over_p50"] for row in rows] == [1.5] * 4
    assert [row["slowness_at_most"] for row in rows] == [1.0, 1.0, 1.0, 1.25]


def test_slow_neighbours_on_either_side_count(bench: ModuleType) -> None:
    quiet = bench.Turn([2.0] * 6, [3.0] * 6, [4.0])
    slow = bench.Turn([2.0] * 6, [6.0] * 6, [4.0])
    assert bench.slowness([quiet, quiet, slow, quiet, quiet]) == [1.0, 1.5, 1.5, 1.0]


def test_loops_reads_and_tokens_are_taken_by_turns(smollm2: Path, tmp_path: Path) -> None:
    words = ["--turns", "9", "--tokens", "2", "--window", "124", "--path", str(smollm2)]
    subprocess.run(
        [sys.executable, str(BENCH / "noise_bench.py"), *words],
        env={**os.environ, "BENCH_OUT": str(tmp_path)},
        check=True,
        capture_output=True,
    )
    found = json.loads((tmp_path / "noise.json").read_text())
    assert (found["turns"], found["capacity"]) == (9, 128)
    assert found["tokens"]["count"] == 18
    assert found["empty_loops"]["count"] == found["plain_reads"]["count"] == 9 * 6
    assert sum(row["count"] for row in found["tokens_by_the_machines_slowness"]) == 16
    assert found["evicted_tokens"] > 50  # the cache was full


def test_too_few_turns_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH / "noise_bench.py"), "--turns", "8"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "at least 9" in done.stderr
