"""`benchmarks/engine_bench.py`: each part runs, and reports every figure that it defines."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.full

BENCH = Path(__file__).parents[3] / "benchmarks" / "engine_bench.py"


def run(*options: str) -> tuple[dict[str, Any], str]:
    """Return the report of a benchmark and what it wrote to standard error."""
    done = subprocess.run(
        [sys.executable, BENCH, *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report, done.stderr


def values(part: dict[str, Any]) -> dict[str, float]:
    return {row["figure"]: row["value"] for row in part["rows"]}


def test_churn_is_measured_against_its_goals(tmp_path: Path) -> None:
    report, terminal = run("--only", "churn", "--churn-streams", "60", "--churn-samples", "12")
    assert report["bench"] == "engine-churn"
    assert report["churn"]["sizes"] == {"streams": 60, "samples": 12, "capacity": 64}
    found = values(report["churn"])
    assert found["streams that did not end as cancelled"] == 0
    assert found["pages in use at the end"] == 0
    assert "slope of memory" in found
    assert report["churn"]["evicted_tokens"] >= 0
    head, *lines = terminal.strip().splitlines()
    assert report["processor"] in head
    assert f"commit {report['commit']}" in head
    goals = [line for line in lines if "reached" in line or "missed" in line]
    assert len(goals) == sum("goal" in row for row in report["churn"]["rows"]) == 3


def test_a_size_that_is_not_a_number_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, BENCH, "--only", "churn", "--churn-streams", "many"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "argument --churn-streams: invalid int value: 'many'" in done.stderr


PARTS = {
    "throughput": ["streams=2", "cached=250", "tokens=4", "rounds=2"],
    "many": ["tiny_streams=40", "streams=8", "tokens=70"],
    "long_prompt": ["streams=3", "tokens=2000", "undisturbed=10"],
    "idle_consumers": ["active=2", "idle=5", "tokens=10", "rounds=2"],
    "stop": ["rounds=2", "exits=2"],
    "gil": ["spinners=2", "seconds=0.5", "rounds=2"],
}
FIGURES = {
    "throughput": ["2 streams, engine / forward", "2 streams, growth / growth"],
    "many": ["40 streams, tiny model: unfinished", "8 streams, model: memory / announced"],
    "long_prompt": ["p99 while it is read / undisturbed median"],
    "idle_consumers": ["with idle / alone"],
    "stop": [
        *(f"{way}, until idle" for way in ("cancel", "close", "break", "del", "aclose")),
        "timeout_s, until idle",
        "cancel while a prompt is read, until idle",
        "Ctrl-C, until KeyboardInterrupt",
        "exit of a program that streams",
    ],
    "gil": ["inside / outside"],
}


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_every_part_reports_its_figures_and_goals(
    part: str, tiny_folder: Callable[[str], Path]
) -> None:
    sizes = [f"--{part}-{size}".replace("_", "-") for size in PARTS[part]]
    report, _ = run("--only", part, "--path", str(tiny_folder("llama")), *sizes)
    with_goal = [row["figure"] for row in report[part]["rows"] if "goal" in row]
    assert set(FIGURES[part]) <= set(with_goal)
    assert all(row["value"] >= 0 for row in report[part]["rows"])
    unfinished = [value for name, value in values(report[part]).items() if "unfinished" in name]
    assert unfinished == [0] * len(unfinished)
