"""Prints measured figures next to their goals, from the JSON files that the benchmarks wrote.

    BENCH_OUT=figures python benchmarks/goal_table.py

Goals come from `goals.py` (comparisons with other engines, and limits of single benchmarks) and
from the parts of `engine_bench.py`, each of which names its own. A goal that was not measured has a
row, too. The last lines count the verdicts and name the processors and commits of the figures.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from goals import BEST, ENGINE_PARTS, LIMITS, MODELS, OURS, Goal, Limit, goals_of, kernels_of

_KERNELS = "avx512"  # its goals are listed where nothing was measured

Row = tuple[str, str, str, str, str]  # bench, figure, found, goal, verdict


def verdict(is_reached: bool) -> str:
    """Return the word for a goal that was or was not reached."""
    return "reached" if is_reached else "missed"


def kernels_in(folder: Path) -> str:
    """Return the kernel table that comparisons with other engines were measured with."""
    for path in sorted(folder.glob("side_by_side-*.json")):
        named = kernels_of(json.loads(path.read_text())["engines"].get(OURS, ""))
        if named:
            return named
    return _KERNELS


def side_by_side_rows(folder: Path, model: str, threads: int) -> Iterator[Row]:
    """Yield a row for each goal of a model's comparisons with other engines."""
    path = folder / f"side_by_side-{model}-{threads}.json"
    figures = json.loads(path.read_text()) if path.exists() else {}
    comparisons = figures.get("comparisons", [])
    name = f"{model}, threads: {threads}"
    for goal in goals_of(model, kernels_in(folder)):
        least = f">= {goal.ratio:g}"
        same = (row for row in comparisons if row["measure"] == goal.measure)
        row = next((row for row in same if is_wanted(row, goal)), None)
        if row is None:
            yield name, f"{goal.measure}, against {goal.rival}", "-", least, "not measured"
            continue
        found = f"{row['ratio']:.2f} ({row['smallest']:.2f} - {row['largest']:.2f})"
        what = f"{row['measure']}, against {row['against']}"
        yield name, what, found, least, verdict(row["ratio"] >= goal.ratio)


def is_wanted(row: dict[str, Any], goal: Goal) -> bool:
    """Return whether a comparison is the one of a goal: with its rival, or with the best one."""
    rival: str = row["against"]
    return row["goal"] == goal.ratio and (rival.startswith(goal.rival) or goal.rival == BEST)


def limit_row(folder: Path, limit: Limit) -> Row:
    """Return the row of one benchmark's limit."""
    path = folder / f"{limit.bench}.json"
    figures = json.loads(path.read_text()) if path.exists() else {}
    found: float | None = figures.get(limit.figure)
    if found is None:
        return limit.bench, limit.figure, "-", str(limit), "not measured"
    return limit.bench, limit.figure, f"{found:g}", str(limit), verdict(limit.is_kept(found))


def engine_rows(folder: Path, part: str) -> Iterator[Row]:
    """Yield a row for each goal of one part of `engine_bench.py`, from its newest report."""
    name = f"engine, {part}"
    reports = sorted(folder.glob("engine*.json"), key=lambda path: path.stat().st_mtime)
    figures = [json.loads(path.read_text()) for path in reports]
    of_part = [one[part]["rows"] for one in figures if part in one]
    if not of_part:
        yield name, "all of it", "-", "its own", "not measured"
        return
    for row in of_part[-1]:
        if "goal" in row:
            yield name, row["figure"], f"{row['value']:g}", row["goal"], row["verdict"]


def rows(folder: Path) -> Iterator[Row]:
    """Yield a row for each goal."""
    for model in MODELS:
        for threads in (2, 1):
            yield from side_by_side_rows(folder, model, threads)
    for part in ENGINE_PARTS:
        yield from engine_rows(folder, part)
    for limit in LIMITS:
        yield limit_row(folder, limit)


def reports(folder: Path) -> Iterator[Path]:
    """Yield the paths of the table's figures that exist."""
    names = [f"side_by_side-{model}-{threads}" for model in MODELS for threads in (2, 1)]
    names += dict.fromkeys(limit.bench for limit in LIMITS)
    yield from (path for name in names if (path := folder / f"{name}.json").exists())
    yield from folder.glob("engine*.json")


def sources(folder: Path) -> Iterator[str]:
    """Yield a line for each processor that was measured, with the commits."""
    commits: dict[str, set[str]] = {}
    for path in reports(folder):
        figures = json.loads(path.read_text())
        processor = re.sub(
            r", \d+ cores$", "", figures["processor"]
        )  # the number of cores in use may differ
        commits.setdefault(processor, set()).add(figures["commit"])
    for processor, found in commits.items():
        yield f"{processor}; commits: {', '.join(sorted(found))}"


def main() -> None:
    """Print the table."""
    folder = Path(os.environ.get("BENCH_OUT", "figures"))
    table = list(rows(folder))
    for row in table:
        print(" | ".join(row))
    count = Counter(row[-1] for row in table)
    words = ("reached", "missed", "not measured")
    print(f"\n{len(table)} goals: " + ", ".join(f"{count[word]} {word}" for word in words))
    for line in sources(folder):
        print(line)


if __name__ == "__main__":
    main()
