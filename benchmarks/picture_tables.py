"""Makes the tables and pictures of whole novels from the results of picture_bench.py.

The page is docs/notebook/2026-11-22-whole-novels.md.

    BENCH_OUT=figures python benchmarks/picture_tables.py books-heldout.jsonl.xz

Prints Markdown, and draws perplexity and cost as .png and .svg in $BENCH_OUT.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path

from picture_bench import ABOUT, NOVEL, TOKENS, TYPES, Run, load_model, measure, runs

from sinkstream.evaluate import PerplexityResult, compare, plot_cost, plot_perplexity
from sinkstream.evaluate.long_texts import read_books

Found = dict[str, tuple[Run, PerplexityResult]]

# Perplexity over all tokens and over the second half, from an independent implementation.
ORACLE = {
    ("sinks", 4, 2044): (24.459, 23.511),
    ("sinks", 4, 1020): (24.781, 23.897),
    ("sinks", 4, 252): (28.076, 26.167),
    ("sinks", 1, 1023): (24.783, 23.903),
    ("window", 0, 2048): (35.900, 35.291),
    ("window", 0, 1024): (38.168, 37.627),
    ("dense", 0, 20_000): (103.95, 428.99),
}


def compared(title: str, types: str = "float16") -> list[Run]:
    """List the runs that the pictures compare."""
    views = (("sinks", 4, 1020), ("window", 0, 1024), ("dense", 0, TOKENS))
    return [Run("", *view, book=title, types=types) for view in views]


def read(folder: Path, titles: list[str]) -> Found:
    """Read the finished runs, by name."""
    found: Found = {}
    for run in runs(titles):
        path = folder / f"{run.name}.json"
        if path.exists():
            values = json.loads(path.read_text())
            kept = {name: value for name, value in values.items() if name not in ABOUT}
            found[run.name] = run, PerplexityResult.from_dict(kept)
    return found


def result_of(found: Found, run: Run) -> PerplexityResult | None:
    """Return the result of a run, or else that of the same run in float32."""
    known = found.get(run.name) or found.get(replace(run, types="float32").name)
    return known[1] if known else None


def both_halves(result: PerplexityResult) -> str:
    """Return perplexity over all tokens and over the second half."""
    half = (result.tokens + 1) // 2 // result.block * result.block
    return f"{result.perplexity:.4f} / {result.perplexity_from(half):.3f}"


def print_oracle(found: Found) -> None:
    """Print our perplexities and those of the independent implementation."""
    columns = " | ".join(f"{types} | off by" for types in TYPES)
    print(f"| | independent, all / second half | {columns} |")
    print("|---|---|" + "---|---|" * len(TYPES))
    for (method, sinks, window), (whole, second) in ORACLE.items():
        cells = [f"{whole:g} / {second:g}"]
        for types in TYPES:
            run = found.get(Run("", method, sinks, window, types=types).name)
            if run:
                cells += [both_halves(run[1]), f"{run[1].perplexity / whole - 1:+.4%}"]
            else:
                cells += ["", ""]
        name = "dense" if method == "dense" else f"S={sinks} W={window}"
        print(f"| {name} | {' | '.join(cells)} |")


def print_ablation(found: Found) -> None:
    """Print perplexity by number of sinks and by capacity."""
    print("\n| sinks, of a capacity of 1,024 | perplexity, all / second half |\n|---|---|")
    for sinks in (0, 1, 2, 4, 8):
        method = "sinks" if sinks else "window"
        result = result_of(found, Run("", method, sinks, 1024 - sinks))
        if result:
            print(f"| {sinks} | {both_halves(result)} |")
    print("\n| capacity, with 4 sinks | perplexity, all / second half |\n|---|---|")
    for capacity in (128, 256, 512, 1024, 2048, 4096):
        run = found.get(Run("", "sinks", 4, capacity - 4).name)
        if run:
            print(f"| {capacity:,} | {both_halves(run[1])} |")


def print_books(found: Found, titles: list[str]) -> None:
    """Print the perplexity of every book, by method."""
    print("\n| book, first 20,000 tokens | sinks 4 + 1,020 | window 1,024 | dense |")
    print("|---|---|---|---|")
    for title in titles:
        results = [result_of(found, run) for run in compared(title)]
        cells = [f"{result.perplexity:.2f}" if result else "" for result in results]
        print(f"| {title} | {' | '.join(cells)} |")


def print_long(found: Found) -> None:
    """Print the long run and its speed."""
    run = found.get(Run("", "sinks", 4, 1020, tokens=200_000).name)
    if run:
        result = run[1]
        print(
            f"\n{result.tokens + 1:,} tokens: {both_halves(result)}, "
            f"{result.tokens / result.seconds:.0f} tokens/s"
        )


def print_recompute(found: Found, books: dict[str, str], folder: Path) -> None:
    """Print the paired differences from recomputation, at the same positions."""
    print("\n| book | sinks − recompute, nats | window − recompute, nats |\n|---|---|---|")
    model = None
    for title, text in books.items():
        exact = Run("", "recompute", 0, 1024, book=title, sample=60)
        others = [Run("", "sinks", 4, 1020, book=title), Run("", "window", 0, 1024, book=title)]
        if not all(run.name in found for run in (exact, *others)):
            continue
        model = model or load_model(exact.types, None)
        reference = measure(exact, model, text, folder)
        cells = []
        for run in others:
            difference = compare(measure(run, model, text, folder), reference)
            half = difference.mean - difference.interval[0]
            cells.append(f"{difference.mean:+.3f} ± {half:.3f}")
        print(f"| {title} | {' | '.join(cells)} |")


def calmest(found: Found, titles: list[str]) -> list[PerplexityResult]:
    """Return the runs of the book that other programs disturbed least.

    That is the book whose slowest block was fastest, among those with the most runs.
    """

    def there(title: str) -> list[PerplexityResult]:
        return [found[run.name][1] for run in compared(title) if run.name in found]

    def disturbance(results: list[PerplexityResult]) -> tuple[int, float]:
        return -len(results), max((max(result.block_seconds) for result in results), default=0.0)

    return min(map(there, titles), key=disturbance)


def draw(found: Found, titles: list[str], out: Path) -> None:
    """Draw perplexity of the novel in float32, and time per token of the calmest book."""
    exact = [found[run.name][1] for run in compared(NOVEL, "float32") if run.name in found]
    for kind in ("png", "svg"):
        plot_perplexity(exact, out / f"perplexity.{kind}", title=f"SmolLM2-135M on {NOVEL}")
        plot_cost(calmest(found, titles), out / f"cost.{kind}", title="SmolLM2-135M")


def main() -> None:
    """Print and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("books", help="a .jsonl or .jsonl.xz file of books")
    args = parser.parse_args()
    out = Path(os.environ.get("BENCH_OUT", "figures"))
    folder = out / "runs"
    books = {book.title: book.text for book in read_books(args.books)}
    found = read(folder, list(books))
    print_oracle(found)
    print_ablation(found)
    print_books(found, list(books))
    print_long(found)
    print_recompute(found, books, folder)
    draw(found, list(books), out)


if __name__ == "__main__":
    main()
