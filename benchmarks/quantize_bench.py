"""Measures what each type of `load(quantize=...)` costs: bytes of the weights, and perplexity.

    python benchmarks/quantize_bench.py --tokens 8000

The model is SmolLM2 in 16 bits, with its dimensions in a random order; see `expanded_gguf.py`.
"""

from __future__ import annotations

import argparse
import pathlib
import tempfile
from typing import Any, get_args

import torch
from expanded_gguf import expand
from machine import ROOT, report
from perplexity_bench import perplexity

import sinkstream
from sinkstream.checkpoint.stores.packages import locate
from sinkstream.loading.open_checkpoint import Quantize


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--book", default=str(ROOT / "tests/data/prose.txt"))
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--window", type=int, default=2044)
    parser.add_argument("--types", action="append", help="may be repeated; default: all")
    args = parser.parse_args()
    text = pathlib.Path(args.book).read_text(encoding="utf-8")
    figures: dict[str, Any] = {"tokens": args.tokens, "window": args.window}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "smollm2-f16.gguf")
        expand(locate("smollm2"), path, reorder=True)
        for kind in [None, *(args.types or get_args(Quantize))]:
            with sinkstream.load(path, window=args.window, max_sequences=1, quantize=kind) as model:
                ids = torch.tensor([model.tokenizer.encode(text).ids[: args.tokens]])
                value, evicted = perplexity(model, ids)
                figures[kind or "none"] = {
                    "weight_mb": round(model.capacity.weight_bytes / 1e6, 1),
                    "perplexity": round(value, 4),
                    "evicted_tokens": evicted,
                }
    report("quantize", figures)


if __name__ == "__main__":
    main()
