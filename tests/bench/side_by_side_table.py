"""What `side_by_side_bench.py` wrote, as a table in Markdown: that of docs/performance.md.

    BENCH_OUT=docs/figures/zen4 python tests/bench/side_by_side_table.py 2

prints what was measured with two threads: medians in tokens/s, then our rate over another
engine's, the median of the rounds (the smallest and the largest), the best other engine first; then
our share of what bounds us: of a plain read of memory, for prompts of a loop of dots. A goal that
was not reached is called missed. A model or a figure that is not there has no row.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from goals import MODELS, OURS, PEAK, READ

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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("threads", type=int)
    threads = parser.parse_args().threads
    head = ("model", f"threads: {threads}", *ENGINES, "beside", "share of the bound")
    for row in (head, ("---",) * len(head), *rows(Path(os.environ["BENCH_OUT"]), threads)):
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
