"""Prints results of `side_by_side_bench.py` as the Markdown tables of docs/performance.md.

    BENCH_OUT=benchmarks/results/2026-11-24-zen4 python benchmarks/side_by_side_table.py 2

prints the results with two threads: medians in tokens/s; the ratios of our rate to those of the
other engines, best engine first, as median (smallest – largest) over the rounds; and our share of
the bound, which is a plain read of memory or, for prompts, a loop of dots. A goal that was not
reached is marked as missed. Models and figures that were not measured have no row.
`--short` prints one number for each figure of each model: our rate over the best other engine's.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from goals import MODELS, OURS, PEAK, READ, RECOMPUTED

# Column -> engine. The column names also stand for the engines in ratios.
ENGINES = {
    "sinkstream": OURS,
    "llama.cpp": "llama.cpp",
    "llama.cpp, flash": "llama.cpp, flash attention",
    "OpenVINO": "OpenVINO GenAI",
    "transformers": "transformers, sinks token by token",
}
_SHORT = {name: column for column, name in ENGINES.items()}


def rate(value: float | None) -> str:
    """Return tokens/s, without decimals from 20 on."""
    return "" if value is None else f"{value:,.0f}" if value >= 20 else f"{value:.1f}"


def times(value: float) -> str:
    """Return a ratio, without decimals from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def ratio(row: dict[str, Any]) -> str:
    """Return a comparison with its spread and its goal."""
    text = f"{times(row['ratio'])} ({times(row['smallest'])} – {times(row['largest'])})"
    if row["goal"] is None:
        return text
    if row["ratio"] >= row["goal"]:
        return f"{text}, goal {row['goal']:g}"
    by = f" by {row['goal'] - row['ratio']:.3f}" if row["goal"] - row["ratio"] < 0.005 else ""
    return f"{text}, goal {row['goal']:g}: missed{by}"


def rows(folder: Path, threads: int) -> Iterator[tuple[str, ...]]:
    """Yield a row for each measured figure of each model."""
    for model in MODELS:
        path = folder / f"side_by_side-{model}-{threads}.json"
        if not path.exists():
            continue
        figures = json.loads(path.read_text())
        for measure, rates in figures["tokens/s, medians"].items():
            there = [row for row in figures["comparisons"] if row["measure"] == measure]
            bounds = [ratio(row) for row in there if row["against"] in (READ, PEAK)]
            others = [row for row in there if row["against"] not in (READ, PEAK)]
            others.sort(key=lambda row: rates[row["against"]], reverse=True)
            ratios = [
                f"{_SHORT.get(row['against'], row['against'])} {ratio(row)}" for row in others
            ]
            yield (
                f"{model}, {figures['rounds']} rounds",
                measure,
                *(rate(rates.get(name)) for name in ENGINES.values()),
                "; ".join(ratios),
                "; ".join(bounds),
            )


def best_ratio(figures: dict[str, Any], measure: str) -> str:
    """Return our rate of a measure over the best other engine's; empty if there is none."""
    rates = figures["tokens/s, medians"].get(measure, {})
    others = [
        row
        for row in figures["comparisons"]
        if row["measure"] == measure and row["against"] not in (READ, PEAK, RECOMPUTED)
    ]
    best = max(others, key=lambda row: float(rates[row["against"]]), default=None)
    return "" if best is None else times(best["ratio"])


def short_rows(folder: Path, threads: int) -> Iterator[tuple[str, ...]]:
    """Yield the models, then a row for each measure that another engine has, too."""
    paths = [(model, folder / f"side_by_side-{model}-{threads}.json") for model in MODELS]
    figures = {model: json.loads(path.read_text()) for model, path in paths if path.exists()}
    yield (f"threads: {threads}", *figures)
    names = dict.fromkeys(name for one in figures.values() for name in one["tokens/s, medians"])
    for name in names:
        ratios = [best_ratio(one, name) for one in figures.values()]
        if any(ratios):
            yield (name, *ratios)


def table(folder: Path, threads: int, *, short: bool) -> str:
    """Return the table as lines of Markdown."""
    if short:
        head, *body = short_rows(folder, threads)
    else:
        head = ("model", f"threads: {threads}", *ENGINES, "ratio to others", "share of the bound")
        body = list(rows(folder, threads))
    lines = (head, ("---",) * len(head), *body)
    return "".join("| " + " | ".join(row) + " |\n" for row in lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("threads", type=int)
    parser.add_argument(
        "--short", action="store_true", help="print only the ratio to the best other engine"
    )
    args = parser.parse_args()
    print(table(Path(os.environ["BENCH_OUT"]), args.threads, short=args.short), end="")


if __name__ == "__main__":
    main()
