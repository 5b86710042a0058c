"""Every figure that has a goal, beside it, out of the JSON that the benches wrote.

    BENCH_OUT=figures python tests/bench/goal_table.py

A bench that has not run is a row, too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from goals import LIMITS

Row = tuple[str, str, str, str, str]  # bench, figure, found, goal, verdict


def verdict(is_reached: bool) -> str:
    """Return the word for it."""
    return "reached" if is_reached else "missed"


def rows(folder: Path) -> Iterator[Row]:
    """Yield a row for each goal."""
    for path in sorted(folder.glob("side_by_side-*.json")):
        figures = json.loads(path.read_text())
        name = f"{figures['model']}, threads: {figures['threads']}"
        for row in figures["comparisons"]:
            if row["goal"] is not None:
                what = f"{row['measure']}, beside {row['beside']}"
                found = f"{row['ratio']:.2f} ({row['smallest']:.2f} - {row['largest']:.2f})"
                reached = verdict(row["ratio"] >= row["goal"])
                yield name, what, found, f">= {row['goal']:g}", reached
    for limit in LIMITS:
        path = folder / f"{limit.bench}.json"
        if not path.exists():
            yield limit.bench, limit.figure, "-", str(limit), "not measured"
            continue
        found: Any = json.loads(path.read_text())[limit.figure]
        yield limit.bench, limit.figure, f"{found:g}", str(limit), verdict(limit.is_kept(found))


def main() -> None:
    """Print the table."""
    folder = Path(os.environ.get("BENCH_OUT", "figures"))
    for row in rows(folder):
        print(" | ".join(row))


if __name__ == "__main__":
    main()
