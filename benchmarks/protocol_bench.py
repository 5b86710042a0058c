"""Compares the original protocol, token by token in transformers, with reading in chunks.

    python benchmarks/protocol_bench.py --tokens 2000 --window 252
    python benchmarks/protocol_bench.py --tokens 20000 --text books.jsonl.xz --title "The Downfall"

Both use the same file and one type (`--dtype`, of the cache, too): transformers (`pip install
transformers`) with `sinkstream.streaming_llm`, one token per forward, and
`sinkstream.evaluate.perplexity` with the equivalent window. Reports both mean negative
log-likelihoods and both times.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

import torch
from machine import ROOT, processor, report


def main() -> None:
    """Run both and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--sinks", type=int, default=4)
    parser.add_argument("--window", type=int, default=252)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--dtype",
        choices=["float32", "bfloat16"],
        default="bfloat16" if "bf16" in processor() else "float32",
        help="[bfloat16 if the processor multiplies it, else float32]",
    )
    parser.add_argument(
        "--text",
        default=str(ROOT / "tests" / "data" / "prose.txt"),
        help="a text file, or a .jsonl or .jsonl.xz file of books [64 KB of prose]",
    )
    parser.add_argument("--title", help="the title of a book in a .jsonl file [the first]")
    args = parser.parse_args()
    from transformers import AutoModelForCausalLM

    import sinkstream
    from sinkstream.cli.terminal import progress_bar
    from sinkstream.evaluate import perplexity
    from sinkstream.evaluate.long_texts import pick_book, read_books
    from sinkstream.streaming_llm import enable_streaming_llm

    torch.set_num_threads(args.threads)
    with sinkstream.load(
        dtype=args.dtype,
        kv_dtype=args.dtype,
        sinks=args.sinks,
        window=args.window,
        max_sequences=1,
        threads=args.threads,
    ) as model:
        tokenizer = model.tokenizer
        assert tokenizer is not None
        book = pick_book(read_books(args.text), args.title)
        ids = tokenizer.encode(book.text).ids[: args.tokens]
        started = time.perf_counter()
        with progress_bar("sinks", with_time=True, note="perplexity {:.3f}") as show:
            ours = perplexity(model, ids, method="sinks", progress=show)
        our_seconds = time.perf_counter() - started
        path = Path(model.path)

    theirs = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=getattr(torch, args.dtype)
    ).eval()
    kv_cache = enable_streaming_llm(theirs, args.sinks, args.window - 1)
    past = kv_cache.new_cache()
    total = 0.0
    started = time.perf_counter()
    with torch.inference_mode(), progress_bar("original protocol", with_time=True) as show:
        for done, (token, following) in enumerate(itertools.pairwise(ids), 1):
            found = theirs(torch.tensor([[token]]), past_key_values=past, use_cache=True)
            past = kv_cache(found.past_key_values)
            total -= torch.log_softmax(found.logits[0, -1].double(), dim=-1)[following].item()
            show(done, len(ids) - 1)
    their_seconds = time.perf_counter() - started
    their_nll = total / (len(ids) - 1)
    report(
        "protocol",
        {
            "text": book.title,
            "tokens": len(ids),
            "sinks": args.sinks,
            "window": args.window,
            "threads": args.threads,
            "dtype": args.dtype,
            "evicted_tokens": len(ids) - args.sinks - args.window,
            "mean_nll_by_chunks": ours.mean_nll,
            "mean_nll_by_the_original_protocol": their_nll,
            "difference": ours.mean_nll - their_nll,
            "ms_per_token_by_chunks": round(1000 * our_seconds / len(ids), 3),
            "ms_per_token_by_the_original_protocol": round(1000 * their_seconds / len(ids), 3),
            "ratio": round(their_seconds / our_seconds, 1),
        },
    )


if __name__ == "__main__":
    main()
