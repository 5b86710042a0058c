"""Turns results of `side_by_side_bench.py` into Markdown tables, or prints them.

    BENCH_OUT=benchmarks/results/zen4 python benchmarks/side_by_side_table.py 2

prints the results with two threads, two tables a model: rates are medians in tokens/s; ratios are
our rate over the other engine's, or over the bound's (a plain read of memory, or a loop of dots),
as the median, the smallest and the largest of the rounds. Each measure lists the best engine first.
A model or figure that was not measured has no row. `--short` prints one number for each figure of
each model: our rate over the best other engine's.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from goals import MODELS, OURS, PEAK, READ, RECOMPUTED

# Column -> engine. The column names also stand for the engines in comparisons.
ENGINES = {
    "sinkstream": OURS,
    "float32 inputs": "sinkstream, float32 inputs",
    "int16 inputs": "sinkstream, int16 inputs",
    "int8 inputs": "sinkstream, int8 inputs",
    "llama.cpp": "llama.cpp",
    "llama.cpp, flash": "llama.cpp, flash attention",
    "OpenVINO": "OpenVINO GenAI",
    "transformers": "transformers, sinks token by token",
    "recomputed window": RECOMPUTED,
}
_SHORT = {name: column for column, name in ENGINES.items()} | {
    READ: "plain read",
    PEAK: "loop of dots",
}
TITLES = {
    "smollm2": "SmolLM2 Q4_1",
    **{f"qwen3-0.6b-{kind}": f"0.6B {kind}" for kind in ("Q4_0", "Q8_0", "BF16")},
    **{f"llama-3.2-1b-{kind}": f"1B {kind}" for kind in ("Q4_0", "Q8_0", "BF16")},
    "qwen3-30b-a3b-layers-Q4_K_M": "8 of 128 experts, Q4_K_M",
    "gpt-oss-20b-layers-MXFP4": "4 of 32 experts, MXFP4",
}

Row = tuple[str, ...]


def markdown(head: Row, body: Iterable[Row]) -> str:
    """Return a table."""
    lines = (head, ("---",) * len(head), *body)
    return "".join("| " + " | ".join(row) + " |\n" for row in lines)


def rate(value: float | None) -> str:
    """Return tokens/s, without decimals from 20 on, with two below 1."""
    return (
        ""
        if value is None
        else f"{value:,.0f}"
        if value >= 20
        else f"{value:.{1 if value >= 1 else 2}f}"
    )


def times(value: float) -> str:
    """Return a ratio, without decimals from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def goal(row: dict[str, Any]) -> str:
    """Return the goal of a comparison, and whether it was missed."""
    if row["goal"] is None:
        return ""
    if row["ratio"] >= row["goal"]:
        return f"{row['goal']:g}"
    by = f" by {row['goal'] - row['ratio']:.3f}" if row["goal"] - row["ratio"] < 0.005 else ""
    return f"{row['goal']:g}: missed{by}"


def rates_table(figures: dict[str, Any]) -> str:
    """Return the median rate of each engine in each measure."""
    medians = figures["tokens/s, medians"]
    columns = {
        column: name
        for column, name in ENGINES.items()
        if any(name in rates for rates in medians.values())
    }
    body = (
        (measure, *(rate(rates.get(name)) for name in columns.values()))
        for measure, rates in medians.items()
    )
    return markdown(("tokens/s", *columns), body)


def comparisons_table(figures: dict[str, Any]) -> str:
    """Return our rate over that of other engines, the best one first, and over the bounds."""
    return markdown(("", "against", "ratio", "range", "goal"), comparisons(figures))


def comparisons(figures: dict[str, Any]) -> Iterator[Row]:
    """Yield a row for each comparison."""
    for measure, rates in figures["tokens/s, medians"].items():
        there = [row for row in figures["comparisons"] if row["measure"] == measure]
        there.sort(key=lambda row: rates.get(row["against"], -1), reverse=True)
        for row in there:
            spread = f"{times(row['smallest'])} – {times(row['largest'])}"
            against = _SHORT.get(row["against"], row["against"])
            yield (measure, against, times(row["ratio"]), spread, goal(row))


def best_comparison(figures: dict[str, Any], measure: str) -> dict[str, Any] | None:
    """Return the comparison of a measure with the best other engine; None if there is none."""
    rates = figures["tokens/s, medians"].get(measure, {})
    others = [
        row
        for row in figures["comparisons"]
        if row["measure"] == measure and row["against"] not in (READ, PEAK, RECOMPUTED)
    ]
    return max(others, key=lambda row: float(rates[row["against"]]), default=None)


def short_rows(folder: Path, threads: int) -> Iterator[Row]:
    """Yield the models, then a row for each measure that another engine has, too."""
    figures = dict(results(folder, threads))
    yield (f"threads: {threads}", *(TITLES[model] for model in figures))
    names = dict.fromkeys(name for one in figures.values() for name in one["tokens/s, medians"])
    for name in names:
        best = [best_comparison(one, name) for one in figures.values()]
        if any(best):
            yield (name, *("" if row is None else times(row["ratio"]) for row in best))


def short_table(folder: Path, threads: int) -> str:
    """Return our rate over the best other engine's, for each model."""
    head, *body = short_rows(folder, threads)
    return markdown(head, body)


def results(folder: Path, threads: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the models of a folder with their figures."""
    for model in MODELS:
        path = folder / f"side_by_side-{model}-{threads}.json"
        if path.exists():
            yield model, json.loads(path.read_text())


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("threads", type=int)
    parser.add_argument(
        "--short", action="store_true", help="print only the ratio to the best other engine"
    )
    args = parser.parse_args()
    folder = Path(os.environ["BENCH_OUT"])
    if args.short:
        print(short_table(folder, args.threads), end="")
        return
    for model, figures in results(folder, args.threads):
        print(f"{TITLES[model]}, {figures['rounds']} rounds\n")
        print(rates_table(figures), comparisons_table(figures), sep="\n")


if __name__ == "__main__":
    main()
