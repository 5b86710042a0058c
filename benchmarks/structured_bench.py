"""Measures what a JSON schema costs: the time of a mask, and tokens per second with and without it.

    python benchmarks/structured_bench.py
    python benchmarks/structured_bench.py --model smollm2 --streams 8 --threads 2

The rounds alternate between constrained and free replies of the same prompts. Both have the same
number of tokens: the schema is an array that goes on until `max_tokens`. `mask` is the time of one
mask, in microseconds, along the first reply, measured through llguidance's Python functions, which
add about 2 µs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from machine import report

SCHEMA = {
    "type": "array",
    "minItems": 10_000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "year": {"type": "integer", "minimum": 1000, "maximum": 2100},
            "kind": {"enum": ["river", "lake", "sea"]},
        },
        "required": ["name", "year", "kind"],
        "additionalProperties": False,
    },
    "x-guidance": {"whitespace_flexible": False},
}


class Vocabulary:
    """A model's vocabulary in the form that llguidance's Python functions read."""

    bos_token_id = None

    def __init__(self, model: Any) -> None:
        from sinkstream.text.tokenizers.token_bytes import token_bytes

        table = token_bytes(model.tokenizer, model.spec.vocab_size)
        self.eos_token_id = min(model.end_token_ids)
        self.special_token_ids = sorted(table.special)
        self.tokens = [
            b"\xff" + piece if i in table.special else piece for i, piece in enumerate(table.pieces)
        ]
        self._ids = {piece: i for i, piece in enumerate(self.tokens) if len(piece) == 1}

    def __call__(self, text: bytes) -> list[int]:
        return [self._ids[bytes([byte])] for byte in text]


def mask_times(model: Any, ids: list[int]) -> list[float]:
    """Return the time of the mask before each token, in microseconds."""
    import llguidance

    wrapper = llguidance.TokenizerWrapper(Vocabulary(model))
    tokenizer = llguidance.LLTokenizer(wrapper)
    matcher = llguidance.LLMatcher(
        tokenizer, llguidance.LLMatcher.grammar_from_json_schema(SCHEMA), log_level=0
    )
    times = []
    for token in ids:
        started = time.perf_counter()
        matcher.compute_bitmask()
        times.append((time.perf_counter() - started) * 1e6)
        if not matcher.consume_token(token):
            raise RuntimeError(f"the matcher refuses token {token}: {matcher.get_error()}")
    return times


def tokens_per_s(model: Any, streams: int, tokens: int, **options: Any) -> tuple[float, Any]:
    """Return the speed of several replies together, and the first."""
    started = time.perf_counter()
    running = [
        model.stream(
            [{"role": "user", "content": f"List rivers, lakes and seas. {i}"}],
            max_tokens=tokens, seed=i, ignore_eos=True, stream_interval=16, **options,
        )
        for i in range(streams)
    ]  # fmt: skip
    results = [stream.result() for stream in running]
    seconds = time.perf_counter() - started
    return sum(len(result.token_ids) for result in results) / seconds, results[0]


def main() -> None:
    """Alternate the two kinds of replies, and report medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    import sinkstream

    speeds: dict[str, list[float]] = {"free": [], "constrained": []}
    first: Any = None
    with sinkstream.load(
        args.model,
        window=508,
        threads=args.threads,
        max_sequences=args.streams,
        speculation=0,
    ) as model:
        tokens_per_s(model, args.streams, 16, schema=SCHEMA)  # compiled, and warm
        for _ in range(args.rounds):
            speeds["free"].append(tokens_per_s(model, args.streams, args.tokens)[0])
            speed, first = tokens_per_s(model, args.streams, args.tokens, schema=SCHEMA)
            speeds["constrained"].append(speed)
        masks = sorted(mask_times(model, first.token_ids))
    ratios = [c / f for c, f in zip(speeds["constrained"], speeds["free"], strict=True)]
    report(
        "structured_bench",
        {
            **vars(args),
            "free_tokens_per_s": round(statistics.median(speeds["free"]), 1),
            "constrained_tokens_per_s": round(statistics.median(speeds["constrained"]), 1),
            "evicted_tokens": first.stats.evicted_tokens,
            "ratio": round(statistics.median(ratios), 3),
            "ratios": [round(ratio, 3) for ratio in ratios],
            "mask_p50_us": round(masks[len(masks) // 2], 1),
            "mask_p99_us": round(masks[int(len(masks) * 0.99)], 1),
            "mask_max_us": round(masks[-1], 1),
        },
    )


if __name__ == "__main__":
    main()
