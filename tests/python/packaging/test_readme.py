"""The README: short enough to read to the end, and its figures are those of their JSON file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks" / "results" / "zen4" / "side_by_side-smollm2-2.json"

# Rows of the table, and what their measure is called in the file.
MEASURES = {
    "decode, short context": "decode at 16",
    "decode, 1,024 cached tokens": "decode at 1,024",
    "decode, 4,096 cached tokens": "decode at 4,096",
    "8 sequences at once": "batch of 8 at 256",
    "prefill of 512 tokens": "prefill of 512",
    "**slower:** prefill of 512 tokens": "prefill of 512",
}


def test_the_readme_has_at_most_100_lines() -> None:
    assert len(README.splitlines()) <= 100


@pytest.mark.parametrize("row", MEASURES)
def test_a_row_of_the_readme_is_what_was_measured(row: str) -> None:
    found = re.search(rf"^\| {re.escape(row)} \| (\S+) \| (\S+) (\S+) \| (\S+) \|$", README, re.M)
    assert found
    ours, engine, theirs, ratio = found.groups()
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    medians = results["tokens/s, medians"][MEASURES[row]]
    # The faster mode of an engine with two.
    engines = {name: rate for name, rate in medians.items() if name.startswith(engine)}
    against = max(engines, key=engines.__getitem__)
    assert ours == f"{medians['sinkstream']:,.0f}"
    assert theirs == f"{engines[against]:,.0f}"
    [compared] = [
        comparison["ratio"]
        for comparison in results["comparisons"]
        if (comparison["measure"], comparison["against"]) == (MEASURES[row], against)
    ]
    assert ratio == f"{compared:.2f}"


def test_no_other_row_has_figures() -> None:
    rows = re.findall(r"^\| (.*?) \| [\d,]+ \|", README, re.M)
    assert rows == list(MEASURES)
