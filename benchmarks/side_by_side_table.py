"""What `side_by_side_bench.py` wrote, as a table in Markdown: that of docs/performance.md.

    BENCH_OUT=benchmarks/results/2026-11-24-zen4 python benchmarks/side_by_side_table.py 2

prints what was measured with two threads: medians in tokens/s, then our rate over another
engine's, the median of the rounds (the smallest and the largest), the best other engine first; then
our share of what bounds us: of a plain read of memory, for prompts of a loop of dots. A goal that
was not reached is called missed. A model or a figure that is not there has no row.
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

# Column -> engine; beside others, each goes by the same name.
ENGINES = {
    "sinkstream": OURS,
    "llama.cpp": "llama.cpp",
    "llama.cpp, flash": "llama.cpp, flash attention",
    "OpenVINO": "OpenVINO GenAI",
    "transformers": "transformers, sinks token by token",
}
_SHORT = {name: column for column, name in ENGINES.items()}


def rate(value: float | None) -> str:
    """Return tokens/s, shorter for what is large."""
    return "" if value is None else f"{value:,.0f}" if value >= 20 else f"{value:.1f}"


def times(value: float) -> str:
    """Return a ratio, shorter for what is large."""
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
    """Yield a row for each figure of each model that was measured."""
    for model in MODELS:
        path = folder / f"side_by_side-{model}-{threads}.json"
        if not path.exists():
            continue
        figures = json.loads(path.read_text())
        for measure, rates in figures["tokens/s, medians"].items():
            there = [row for row in figures["comparisons"] if row["measure"] == measure]
            bounds = [ratio(row) for row in there if row["beside"] in (READ, PEAK)]
            others = [row for row in there if row["beside"] not in (READ, PEAK)]
            others.sort(key=lambda row: rates[row["beside"]], reverse=True)
            beside = [f"{_SHORT.get(row['beside'], row['beside'])} {ratio(row)}" for row in others]
            yield (
                f"{model}, {figures['rounds']} rounds",
                measure,
                *(rate(rates.get(name)) for name in ENGINES.values()),
                "; ".join(beside),
                "; ".join(bounds),
            )


def best_ratio(figures: dict[str, Any], measure: str) -> str:
    """Return our rate of a measure over the best other engine's; nothing if there is none."""
    rates = figures["tokens/s, medians"].get(measure, {})
    others = [
        row
        for row in figures["comparisons"]
        if row["measure"] == measure and row["beside"] not in (READ, PEAK, RECOMPUTED)
    ]
    best = max(others, key=lambda row: float(rates[row["beside"]]), default=None)
    return "" if best is None else times(best["ratio"])


def short_rows(folder: Path, threads: int) -> Iterator[tuple[str, ...]]:
    """Yield the models, then a row for each measure that somebody else was asked for."""
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
        head = ("model", f"threads: {threads}", *ENGINES, "beside", "share of the bound")
        body = list(rows(folder, threads))
    lines = (head, ("---",) * len(head), *body)
    return "".join("| " + " | ".join(row) + " |\n" for row in lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("threads", type=int)
    parser.add_argument("--short", action="store_true", help="only how far the best other is")
    args = parser.parse_args()
    print(table(Path(os.environ["BENCH_OUT"]), args.threads, short=args.short), end="")


if __name__ == "__main__":
    main()
