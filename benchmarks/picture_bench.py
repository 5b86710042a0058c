"""Measures the perplexity of SmolLM2 over whole books.

The results are on the page docs/notebook/2026-11-22-whole-novels.md.

    BENCH_OUT=figures python benchmarks/picture_bench.py books-heldout.jsonl.xz

Each run writes a JSON file to $BENCH_OUT/runs and is skipped while that file exists; an interrupted
run continues where it stopped. `--only oracle,types` runs some sets only. At the end
$BENCH_OUT/picture.json lists every finished run.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import commit, processor

import sinkstream
from sinkstream.evaluate import PerplexityResult, perplexity
from sinkstream.evaluate.long_texts import read_books

NOVEL = "David Copperfield"
EVERY = "All books"  # joined: no book has a million tokens
ABOUT = ("kind", "book", "processor", "commit")  # recorded with each result
TOKENS = 20_000

# The types of a run, by name: no rounding; those of the pictures, on every machine; the default
# with AVX2; the default with AVX-512.
TYPES: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32", "kv_dtype": "float32"},
    "float16": {"dtype": "float32", "kv_dtype": "float16"},
    "int16": {"dtype": "int16", "kv_dtype": "float16"},
    "bfloat16": {"dtype": "bfloat16", "kv_dtype": "float16"},
}


@dataclass(frozen=True)
class Run:
    """One measurement of perplexity."""

    kind: str  # its set, as `--only` names it
    method: str
    sinks: int
    window: int
    book: str = NOVEL
    tokens: int = TOKENS
    types: str = "float16"  # a key of TYPES
    sample: int | None = None

    @property
    def name(self) -> str:
        """Return the name of its files."""
        book = self.book.lower().replace(" ", "_")
        return f"{book}-{self.tokens}-{self.method}-{self.sinks}-{self.window}-{self.types}"


def runs(titles: list[str]) -> Iterator[Run]:
    """List all runs, the most important ones first."""
    settings = [("sinks", 4, 1020), ("window", 0, 1024), ("sinks", 4, 2044), ("sinks", 4, 252)]
    settings += [("sinks", 1, 1023), ("window", 0, 2048)]
    for method, sinks, window in settings:
        yield Run("oracle", method, sinks, window, types="float32")
    yield Run("dense", "dense", 0, TOKENS, types="float32")
    for method, sinks, window in settings:
        yield Run("types", method, sinks, window)
        yield Run("types", method, sinks, window, types="int16")
    yield Run("recompute", "recompute", 0, 1024, sample=60)
    for sinks in (2, 8):
        yield Run("sinks", "sinks", sinks, 1024 - sinks)
    for capacity in (128, 512, 4096):
        yield Run("window", "sinks", 4, capacity - 4)
    for title in titles:
        yield Run("books", "sinks", 4, 1020, book=title)
        yield Run("books", "window", 0, 1024, book=title)
    yield Run("long", "sinks", 4, 1020, tokens=200_000)
    yield Run("million", "sinks", 4, 1020, book=EVERY, tokens=1_000_000, types="bfloat16")
    for title in titles:
        yield Run("books-dense", "dense", 0, TOKENS, book=title)
        yield Run("books-recompute", "recompute", 0, 1024, book=title, sample=60)


def load_model(types: str, threads: int | None) -> sinkstream.Model:
    """Load SmolLM2 with the types of a run."""
    return sinkstream.load(window=1020, max_sequences=1, threads=threads, **TYPES[types])


def measure(run: Run, model: sinkstream.Model, text: str, folder: Path) -> PerplexityResult:
    """Do a run, or the rest of it; a finished one is only read."""
    return perplexity(
        model,
        text[: 8 * run.tokens],  # characters; a token has fewer than eight
        method=run.method,
        sinks=run.sinks if run.method == "sinks" else None,
        window=None if run.method == "dense" else run.window,
        max_tokens=run.tokens,
        sample=run.sample,
        resume=folder / f"{run.name}.npz",
    )


def main() -> None:
    """Do the missing runs, and gather all results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("books", help="a .jsonl or .jsonl.xz file of books")
    parser.add_argument("--only", default="", help="sets, separated by commas [all]")
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    out = Path(os.environ.get("BENCH_OUT", "figures"))
    folder = out / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    books = {book.title: book.text for book in read_books(args.books)}
    titles = list(books)
    books[EVERY] = "\n".join(books.values())
    wanted = set(args.only.split(",")) - {""}
    model: sinkstream.Model | None = None
    types = ""
    for run in runs(titles):
        path = folder / f"{run.name}.json"
        if path.exists() or (wanted and run.kind not in wanted):
            continue
        if model is None or run.types != types:
            if model is not None:
                model.close()
            model, types = load_model(run.types, args.threads), run.types
        result = measure(run, model, books[run.book], folder)
        about = dict(zip(ABOUT, (run.kind, run.book, processor(), commit()), strict=True))
        path.write_text(json.dumps({**about, **result.as_dict()}, indent=1) + "\n")
        half = run.tokens // 2 // result.block * result.block
        second = "" if run.sample else f", second half {result.perplexity_from(half):.3f}"
        print(
            f"{run.name}: {result.perplexity:.4f}{second}, {result.seconds:.0f} s",
            flush=True,
        )
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    (out / "picture.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
