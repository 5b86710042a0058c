"""Compares the perplexity of each type of activations and cache with that of float32.

    python benchmarks/perplexity_bench.py BOOK.txt --tokens 8000

Each combination reads the book once through a cache with sinks and a window; the result is that of
one token at a time. `auto` is the choice of `load()` on this processor.
"""

from __future__ import annotations

import argparse
import math
import pathlib
from typing import Any

import torch
from machine import ROOT, report

COMBINATIONS = {
    "all float32": {"dtype": "float32", "kv_dtype": "float32"},
    "auto": {},
    "float32, cache float16": {"dtype": "float32", "kv_dtype": "float16"},
    "float32, cache bfloat16": {"dtype": "float32", "kv_dtype": "bfloat16"},
    "bfloat16, cache float16": {"dtype": "bfloat16", "kv_dtype": "float16"},
    "bfloat16, cache bfloat16": {"dtype": "bfloat16", "kv_dtype": "bfloat16"},
    "int16, cache float16": {"dtype": "int16", "kv_dtype": "float16"},
    "int16, cache int8": {"dtype": "int16", "kv_dtype": "int8"},
    "int8, cache float16": {"dtype": "int8", "kv_dtype": "float16"},
    "int8, cache int8": {"dtype": "int8", "kv_dtype": "int8"},
}


def perplexity(model: Any, ids: torch.Tensor) -> tuple[float, int]:
    """Read ids [1, tokens] through one cache; return perplexity and evicted tokens."""
    cache = model.new_cache()
    total = 0.0
    last = ids.shape[1] - 1
    for begin in range(0, last, 512):
        end = min(begin + 512, last)
        logits = model.forward(ids[:, begin:end], cache)[0].double()
        total += float(
            torch.nn.functional.cross_entropy(logits, ids[0, begin + 1 : end + 1], reduction="sum")
        )
    return math.exp(total / last), cache.evicted


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("book", nargs="?", default=str(ROOT / "tests/data/prose.txt"))
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--window", type=int, default=1020)
    parser.add_argument("--path", default=None)
    parser.add_argument("--types", action="append", choices=COMBINATIONS, help="may be repeated")
    args = parser.parse_args()
    import sinkstream

    text = pathlib.Path(args.book).read_text(encoding="utf-8")
    figures: dict[str, Any] = {"book": pathlib.Path(args.book).name, "window": args.window}
    exact = None
    for name in args.types or COMBINATIONS:
        types = COMBINATIONS[name]
        with sinkstream.load(args.path, window=args.window, max_sequences=1, **types) as model:
            tokenizer = model.tokenizer
            if tokenizer is None:
                raise SystemExit("perplexity: the checkpoint must have a tokenizer.")
            ids = torch.tensor([tokenizer.encode(text).ids[: args.tokens]])
            value, evicted = perplexity(model, ids)
            if types == COMBINATIONS["all float32"]:
                exact = value
            figures[name] = {
                "perplexity": round(value, 4),
                "difference_percent": round(100 * (value / exact - 1), 4) if exact else None,
                "kernels": model.runtime["kernels"],
            }
    figures |= {"tokens": ids.shape[1], "evicted_tokens": evicted}
    report("perplexity", figures)


if __name__ == "__main__":
    main()
