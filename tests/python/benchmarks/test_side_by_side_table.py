"""`benchmarks/side_by_side_table.py`: results as the tables of docs/performance.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
BENCH = str(ROOT / "benchmarks")
RESULTS = ROOT / "benchmarks" / "results"


def comparison(against: str, ratio: float, goal: float | None) -> dict[str, Any]:
    """Return a comparison as the benchmark writes it."""
    spread = {"smallest": ratio - 1, "largest": ratio + 1}
    return {"measure": "decode at 16", "against": against, "ratio": ratio, "goal": goal, **spread}


def test_a_figure_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)
    from side_by_side_table import rows

    read, dots = "a plain read of memory", "a loop of dots in registers"
    figures = {
        "rounds": 5,
        "tokens/s, medians": {
            "decode at 16": {"sinkstream": 1234.4, "llama.cpp": 19.94, "OpenVINO GenAI": 99.6},
            "prefill of 512": {"sinkstream": 20},
        },
        "comparisons": [
            comparison("llama.cpp", 1161.9, 1.8),
            comparison(read, 0.74, 0.75),
            comparison("OpenVINO GenAI", 12.39, None),
            {**comparison(dots, 0.697, 0.7), "measure": "prefill of 512"},
        ],
    }
    (tmp_path / "side_by_side-smollm2-2.json").write_text(json.dumps(figures))
    others = "OpenVINO 12.39 (11.39 – 13.39); llama.cpp 1,162 (1,161 – 1,163), goal 1.8"
    share = "0.74 (-0.26 – 1.74), goal 0.75: missed"
    rates = ("1,234", "19.9", "", "100", "")
    expected = ("smollm2, 5 rounds", "decode at 16", *rates, others, share)
    share = "0.70 (-0.30 – 1.70), goal 0.7: missed by 0.003"
    prompt = ("smollm2, 5 rounds", "prefill of 512", "20", "", "", "", "", "", share)
    assert list(rows(tmp_path, 2)) == [expected, prompt]
    assert list(rows(tmp_path, 1)) == []


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
        ("threads: 2", "smollm2", "llama-3.2-1b-BF16"),
        ("decode at 16", "3.50", ""),
    ]
    assert list(short_rows(tmp_path, 1)) == [("threads: 1",)]


@pytest.mark.parametrize(
    ("mark", "folder", "threads", "short"),
    [
        ("short 2", "2026-11-24-zen4", 2, True),
        ("threads 2", "2026-11-24-zen4", 2, False),
        ("threads 1", "2026-11-24-zen4", 1, False),
        ("batches 2", "2026-11-24-zen4/batches", 2, False),
        ("zen5 2", "2026-11-24-zen5", 2, False),
        ("zen1 2", "2026-11-25-zen1", 2, False),
        ("amx 2", "2026-11-23-amx", 2, False),
        ("whole 2", "2026-11-24-zen5/whole", 2, True),
        ("whole 1", "2026-11-24-zen5/whole", 1, True),
    ],
)
def test_the_page_has_the_tables_of_its_figures(
    monkeypatch: pytest.MonkeyPatch, mark: str, folder: str, threads: int, short: bool
) -> None:
    monkeypatch.syspath_prepend(BENCH)
    from side_by_side_table import table

    page = (ROOT / "docs" / "performance.md").read_text()
    (found,) = re.findall(f"<!-- {mark} -->\n(.*?)<!-- end {mark} -->", page, re.DOTALL)
    assert found == table(RESULTS / folder, threads, short=short)
