"""`benchmarks/json_tables.py`: every figure of a JSON file gets a cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.full

BENCH = str(Path(__file__).parents[3] / "benchmarks")


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        (
            {"peak_kib": 153744, "share": 0.85, "names": ["a", "b"], "none": None},
            "| figure |  |\n| --- | --- |\n| peak KiB | 153,744 |\n| share | 0.85 |\n"
            "| names | a; b |\n| none |  |\n",
        ),
        (
            {"series": [5, 1, 2, 3, 4]},
            "| figure |  |\n| --- | --- |\n| series | 5 values, median 3 (1 – 5) |\n",
        ),
        (
            {"turns": {"16": {"ms": 1.5}, "32": {"ms": 2.5, "mb": 3}}},
            "turns:\n\n|  | ms | mb |\n| --- | --- | --- |\n| 16 | 1.5 |  |\n| 32 | 2.5 | 3 |\n",
        ),
        (
            {"a": {"x": 1}, "b": {"x": {"median": 2, "least": 1, "most": 3}}},
            "|  | x |\n| --- | --- |\n| a | 1 |\n| b | 2 (1 – 3) |\n",
        ),
        (
            {"part": {"rows": [{"figure": "x", "value": 2}], "size": {"n": 7}}},
            "part, rows:\n\n| figure | value |\n| --- | --- |\n| x | 2 |\n"
            "\n| part, size |  |\n| --- | --- |\n| n | 7 |\n",
        ),
    ],
)
def test_a_figure_has_a_cell(
    monkeypatch: pytest.MonkeyPatch, figures: dict[str, Any], expected: str
) -> None:
    monkeypatch.syspath_prepend(BENCH)
    from json_tables import tables

    assert "\n".join(tables(figures)) == expected
