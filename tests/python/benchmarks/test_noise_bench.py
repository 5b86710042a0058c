"""`benchmarks/noise_bench.py`: late tokens of the engine and of the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.full

BENCH = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the program as a module."""
    monkeypatch.syspath_prepend(str(BENCH))
    import noise_bench

    return noise_bench


def test_tokens_late_with_the_machine_are_in_the_last_quarter(bench: ModuleType) -> None:
    quiet = bench.Round([2.0] * 6, [3.0] * 6, [4.0] * 10)
    slow = bench.Round([2.0] * 6, [3.0] * 3 + [4.0] * 3, [4.0] * 5 + [6.0] * 5)
    rows = bench.by_slowness([quiet] * 31 + [slow] * 10, parts=4)
    assert [row["count"] for row in rows] == [100] * 4
    assert [row["p99_over_p50"] for row in rows[:3]] == [1.0] * 3
    assert rows[3]["p99_over_p50"] == 1.5
    assert [row["slowness_at_most"] for row in rows] == [1.0, 1.0, 1.0, 1.167]


def test_tokens_late_by_themselves_are_in_all_quarters(bench: ModuleType) -> None:
    quiet = bench.Round([2.0] * 6, [3.0] * 6, [4.0] * 9 + [6.0])
    slow = bench.Round([2.5] * 6, [3.0] * 6, [4.0] * 9 + [6.0])
    rows = bench.by_slowness([quiet] * 31 + [slow] * 10, parts=4)
    assert [row["p99_over_p50"] for row in rows] == [1.5] * 4
    assert [row["slowness_at_most"] for row in rows] == [1.0, 1.0, 1.0, 1.25]


def test_slow_loops_and_reads_on_either_side_count(bench: ModuleType) -> None:
    quiet = bench.Round([2.0] * 6, [3.0] * 6, [4.0])
    slow = bench.Round([2.0] * 6, [6.0] * 6, [4.0])
    assert bench.slowness([quiet, quiet, slow, quiet, quiet]) == [1.0, 1.5, 1.5, 1.0]


def test_what_threads_do_longer_in_late_tokens_is_told_apart(bench: ModuleType) -> None:
    alike = [(3.0, 0.5), (4.0, 0.0)]
    late = [(3.0, 1.5), (6.0, 0.0)]  # of 4 ms, and of 6.5
    one = bench.Round([], [], [4.0] * 9 + [6.5], [alike] * 9 + [late])
    assert bench.why_late([one] * 3, ["first", "second"]) == {
        "over_p50": 1.1,
        "count": 3,
        "longer_ms": 2.5,
        "threads": [
            {
                "name": "first",
                "ran_longer_ms": 0.0,
                "waited_longer_ms": 1.0,
                "slept_longer_ms": 1.5,
            },
            {
                "name": "second",
                "ran_longer_ms": 2.0,
                "waited_longer_ms": 0.0,
                "slept_longer_ms": 0.5,
            },
        ],
    }


def test_no_late_token_has_no_reason(bench: ModuleType) -> None:
    one = bench.Round([], [], [4.0] * 9, [[(3.0, 0.5)]] * 9)
    assert bench.why_late([one], ["first"]) == {"over_p50": 1.1, "count": 0}


def test_threads_that_run_and_that_sleep_are_told_apart(bench: ModuleType) -> None:
    done = threading.Event()
    clocks = bench.ThreadClocks(Path("/proc/self/comm").read_text().strip())
    idle = threading.Thread(target=done.wait)
    idle.start()
    both = bench.ThreadClocks("")
    before, all_before = clocks.read(), both.read()
    end = time.thread_time() + 0.2
    while time.thread_time() < end:
        pass
    ran = [a - b for (a, _), (b, _) in zip(clocks.read(), before, strict=True)]
    all_ran = [a - b for (a, _), (b, _) in zip(both.read(), all_before, strict=True)]
    done.set()
    idle.join()
    clocks.close()
    both.close()
    assert max(ran) > 150
    assert min(all_ran) < 50


def test_loops_reads_and_tokens_are_interleaved(smollm2: Path, tmp_path: Path) -> None:
    words = ["--rounds", "9", "--tokens", "2", "--window", "124", "--path", str(smollm2)]
    subprocess.run(
        [sys.executable, str(BENCH / "noise_bench.py"), *words],
        env={**os.environ, "BENCH_OUT": str(tmp_path)},
        check=True,
        capture_output=True,
    )
    found = json.loads((tmp_path / "noise.json").read_text())
    assert (found["rounds"], found["capacity"]) == (9, 128)
    assert found["tokens"]["count"] == 18
    assert found["empty_loops"]["count"] == found["plain_reads"]["count"] == 9 * 6
    assert sum(row["count"] for row in found["tokens_by_the_machines_slowness"]) == 16
    assert found["evicted_tokens"] > 50  # the cache was full
    assert found["late_tokens"]["over_p50"] == 1.1


def test_too_few_rounds_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH / "noise_bench.py"), "--rounds", "8"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "--rounds must be at least 9, but is 8" in done.stderr
