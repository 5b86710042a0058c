"""`benchmarks/side_by_side_table.py`: comparisons with other engines as Markdown tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.full

BENCH = str(Path(__file__).parents[3] / "benchmarks")


def comparison(against: str, ratio: float, goal: float | None) -> dict[str, Any]:
    """Return a comparison as the benchmark writes it."""
    spread = {"smallest": ratio - 1, "largest": ratio + 1}
    return {"measure": "decode at 16", "against": against, "ratio": ratio, "goal": goal, **spread}


def test_a_figure_is_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)
    from side_by_side_table import comparisons, rates_table

    read, dots = "a plain read of memory", "a loop of dots in registers"
    figures = {
        "tokens/s, medians": {
            "decode at 16": {"sinkstream": 1234.4, "llama.cpp": 19.94, "OpenVINO GenAI": 99.6},
            "prefill of 512": {"sinkstream": 20, "llama.cpp": 0.126},
        },
        "comparisons": [
            comparison("llama.cpp", 1161.9, 1.8),
            comparison(read, 0.74, 0.75),
            comparison("OpenVINO GenAI", 12.39, None),
            {**comparison(dots, 0.697, 0.7), "measure": "prefill of 512"},
        ],
    }
    assert rates_table(figures).splitlines() == [
        "| tokens/s | sinkstream | llama.cpp | OpenVINO |",
        "| --- | --- | --- | --- |",
        "| decode at 16 | 1,234 | 19.9 | 100 |",
        "| prefill of 512 | 20 | 0.13 |  |",
    ]
    assert list(comparisons(figures)) == [
        ("decode at 16", "OpenVINO", "12.39", "11.39 – 13.39", ""),
        ("decode at 16", "llama.cpp", "1,162", "1,161 – 1,163", "1.8"),
        ("decode at 16", "plain read", "0.74", "-0.26 – 1.74", "0.75: missed"),
        ("prefill of 512", "loop of dots", "0.70", "-0.30 – 1.70", "0.7: missed by 0.003"),
    ]


def test_a_short_table_is_of_the_best_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCH)
    from side_by_side_table import short_rows

    names = ("llama.cpp", "OpenVINO GenAI", "transformers, window recomputed")
    figures = {
        "tokens/s, medians": {
            "decode at 16": {name: rate for rate, name in enumerate(names)} | {"sinkstream": 9},
            "prefill of 512": {"sinkstream": 20},
        },
        "comparisons": [
            comparison("a plain read of memory", 0.74, 0.75),
            *(comparison(name, 2.5 + i, None) for i, name in enumerate(names)),
        ],
    }
    (tmp_path / "side_by_side-smollm2-2.json").write_text(json.dumps(figures))
    figures["comparisons"] = figures["comparisons"][:1]
    (tmp_path / "side_by_side-llama-3.2-1b-BF16-2.json").write_text(json.dumps(figures))
    assert list(short_rows(tmp_path, 2)) == [
        ("threads: 2", "SmolLM2 Q4_1", "1B BF16"),
        ("decode at 16", "3.50", ""),
    ]
    assert list(short_rows(tmp_path, 1)) == [("threads: 1",)]
