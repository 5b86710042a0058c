"""Every figure reports how many tokens were evicted while it was measured, also if none were."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sinkstream.evaluate import perplexity
from tests.python.exactness.streams import LoadOnce, stream_ids

BENCH = Path(__file__).parents[3] / "benchmarks"
BENCHES = sorted(
    file.name
    for file in BENCH.glob("*_bench.py")
    # The first builds tokenizers, and generates nothing. The next two count turns, not tokens. The
    # last times the way to one token.
    if file.name
    not in (
        "vocabulary_bench.py",
        "cluster_ray_bench.py",
        "takeover_bench.py",
        "process_start_bench.py",
    )
)


def measure(name: str, *options: str) -> dict[str, object]:
    """Run a benchmark as a user does, and return its report."""
    done = subprocess.run(
        [sys.executable, BENCH / name, *options],
        capture_output=True,
        text=True,
        check=True,
    )
    report: dict[str, object] = json.loads(done.stdout)
    return report


def test_benches_are_found() -> None:
    assert len(BENCHES) >= 7


@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_reports_evicted_tokens(name: str) -> None:
    tree = ast.parse((BENCH / name).read_text(encoding="utf-8"))
    keys = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    calls = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    # By name, or in the report of an evaluation (below).
    assert "evicted_tokens" in keys or "as_dict" in calls


def test_a_report_of_a_stream_past_its_window_says_how_many_were_evicted() -> None:
    # The prompt of 3 and all generated tokens but the last have been in a cache of 4 + 60.
    assert measure("overhead_bench.py", "--tokens", "300")["evicted_tokens"] == 3 + 299 - 64


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "least"),
    [
        ("latency_bench.py", ["--tokens", "800", "--window", "196"], 600),
        ("memory_bench.py", ["--tokens", "3000", "--window", "196"], 2800),
        ("perplexity_bench.py", ["--tokens", "500", "--window", "60"], 435),
        ("session_bench.py", ["--histories", "60,300", "--window", "60", "--rounds", "2"], 236),
        ("timeline_bench.py", ["--tokens", "1500"], 476),
    ],
)
def test_a_longer_bench_says_how_many_were_evicted(
    name: str, options: list[str], least: int, tiny_folder: Callable[[str], Path]
) -> None:
    evicted = measure(name, *options, "--path", str(tiny_folder("llama")))["evicted_tokens"]
    assert isinstance(evicted, int)
    assert least <= evicted < least + 100


@pytest.mark.filterwarnings("ignore:perplexity. method .dense.")
@pytest.mark.parametrize(
    ("method", "evicted"), [("sinks", 299 - 64), ("window", 299 - 64), ("dense", 0)]
)
def test_a_perplexity_says_how_many_were_evicted(
    method: str, evicted: int, loaded: LoadOnce
) -> None:
    model = loaded("llama", sinks=4, window=60)
    result = perplexity(model, stream_ids("llama", 300)[0], method=method)
    assert result.as_dict()["settings"]["evicted_tokens"] == evicted
