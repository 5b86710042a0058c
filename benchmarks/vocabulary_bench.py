"""Times building the tokenizer of a large SentencePiece vocabulary, which GGUF files call `llama`.

    python benchmarks/vocabulary_bench.py
    python benchmarks/vocabulary_bench.py --tokens 128256

The vocabulary is random (`tests/python/text/vocabularies.py`). `merges` is the search for merges,
`package` the construction by the package tokenizers, which no code here can shorten; `total` is all
that a load does between the file's metadata and a tokenizer. Milliseconds of processor time: the
median of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

from machine import ROOT, report

sys.path.insert(0, str(ROOT))


def timed(rounds: int, call: Callable[[], object]) -> float:
    """Return the median processor time of a call, in milliseconds."""
    times = []
    for _ in range(rounds):
        started = time.process_time()
        call()
        times.append(1000 * (time.process_time() - started))
    return round(statistics.median(times), 1)


def main() -> None:
    """Measure the parts and the total."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=262_144)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()

    from tokenizers import models

    from sinkstream.text.tokenizers.from_gguf import text_format_from_gguf
    from sinkstream.text.tokenizers.vocabulary_kinds import ranked_merges
    from tests.python.text import vocabularies

    metadata = vocabularies.large_sentencepiece_metadata(args.tokens)
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    kinds = metadata["tokenizer.ggml.token_type"]
    ordinary = [i for i, kind in enumerate(kinds) if kind == vocabularies.NORMAL]
    vocabulary = dict(zip(tokens, range(len(tokens)), strict=True))
    merges = ranked_merges(tokens, ordinary, scores)
    figures = {
        "tokens": len(tokens),
        "merges_found": len(merges),
        "merges": timed(args.rounds, lambda: ranked_merges(tokens, ordinary, scores)),
        "package": timed(args.rounds, lambda: models.BPE(vocabulary, merges, byte_fallback=True)),
        "total": timed(args.rounds, lambda: text_format_from_gguf(metadata)),
    }
    report("vocabulary_bench", figures)


if __name__ == "__main__":
    main()
