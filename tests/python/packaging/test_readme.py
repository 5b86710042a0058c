"""The README: short enough to read to the end, and its figures are those of their JSON files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks" / "results"

# Rows of the table: the file, and what is measured there.
FORMATS, ENGINES = "amx-207/formats-2-llama-8b.json", "zen4/side_by_side-smollm2-2.json"
ROWS = {
    "decode, layers of an 8B model, Q4_K_M": (FORMATS, "llama-8b-layers-Q4_K_M.gguf"),
    "decode, layers of an 8B model, Q6_K": (FORMATS, "llama-8b-layers-Q6_K.gguf"),
    "decode, SmolLM2-135M, short context": (ENGINES, "decode at 16"),
    "decode, SmolLM2-135M, 4,096 cached tokens": (ENGINES, "decode at 4,096"),
    "8 sequences at once, SmolLM2-135M": (ENGINES, "batch of 8 at 256"),
    "**slower:** prefill of 512 tokens, SmolLM2-135M": (ENGINES, "prefill of 512"),
}
MACHINES = {"Xeon with AMX": "amx_bf16", "EPYC (Zen 4)": "EPYC"}


def test_the_readme_has_at_most_100_lines() -> None:
    assert len(README.splitlines()) <= 100


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_the_readme_is_what_was_measured(row: str) -> None:
    found = re.search(rf"^\| {re.escape(row)} \| ([^|]+) \| (\S+) \| (\S+) \|$", README, re.M)
    assert found
    machine, engine, ratio = found.groups()
    file, measure = ROWS[row]
    results: dict[str, Any] = json.loads((RESULTS / file).read_text(encoding="utf-8"))
    assert MACHINES[machine] in results["processor"]
    if file == FORMATS:
        assert engine == "llama.cpp"
        assert ratio == f"{results['files'][measure]['ratio']:.2f}"
        return
    medians = results["tokens/s, medians"][measure]
    # The faster mode of an engine with two.
    engines = {name: rate for name, rate in medians.items() if name.startswith(engine)}
    against = max(engines, key=engines.__getitem__)
    [compared] = [
        comparison["ratio"]
        for comparison in results["comparisons"]
        if (comparison["measure"], comparison["against"]) == (measure, against)
    ]
    assert ratio == f"{compared:.2f}"


def test_no_other_row_has_figures() -> None:
    rows = re.findall(r"^\| ([^|]+?) \| [^|]+ \| [^|]+ \| [\d.]+ \|$", README, re.M)
    assert rows == list(ROWS)
