"""Measures the overhead of `sinkstream.streaming_llm` over plain attention in transformers.

    python benchmarks/streaming_llm_bench.py --capacity 1024

A Llama of SmolLM2-135M's shape with random weights takes one token at a time, interleaved: with a
full streaming cache, which evicts at every token, and with transformers' own cache, held at the
same length by removing each token again. Both attend to the same number of keys. Neighboring blocks
form a pair, and the figure is the median of the pairs' ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
import transformers
from machine import report
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from sinkstream.streaming_llm import enable_streaming_llm

# SmolLM2-135M.
SHAPE = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0},
    "tie_word_embeddings": True,
}


def block_seconds(model: Any, cache: Any, tokens: int, take_back: bool) -> float:
    """Return the median time of a token."""
    times = []
    for token in range(tokens):
        begin = time.perf_counter()
        model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
        if take_back:
            cache.crop(-1)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> None:
    """Fill both caches, and measure them interleaved."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capacity", type=int, default=1024, help="keys that a token sees [1024]")
    parser.add_argument("--sinks", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=12, help="pairs of blocks [12]")
    parser.add_argument("--tokens", type=int, default=16, help="tokens of a block [16]")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE)).eval()
    prompt = torch.randint(0, SHAPE["vocab_size"], (1, args.capacity + 64))

    plain_times, stream_times = [], []
    with torch.inference_mode():
        kv_cache = enable_streaming_llm(model, args.sinks, args.capacity - 1 - args.sinks)
        _, stream = kv_cache.read(prompt)
        plain = DynamicCache(config=model.config)
        model(prompt[:, : args.capacity - 1], past_key_values=plain, logits_to_keep=1)
        assert stream.live_tokens == plain.get_seq_length() == args.capacity - 1
        for pair in range(args.pairs + 1):
            plain_s = block_seconds(model, plain, args.tokens, take_back=True)
            stream_s = block_seconds(model, stream, args.tokens, take_back=False)
            if pair > 0:  # the first pair warms up
                plain_times.append(plain_s)
                stream_times.append(stream_s)
        assert stream.live_tokens == plain.get_seq_length() == args.capacity - 1
    ratios = [s / p for s, p in zip(stream_times, plain_times, strict=True)]
    report(
        "streaming_llm",
        {
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "threads": args.threads,
            "capacity": args.capacity,
            "sinks": args.sinks,
            "evicted_tokens": stream.evicted_tokens,
            "plain_ms_per_token": round(1e3 * statistics.median(plain_times), 2),
            "streaming_ms_per_token": round(1e3 * statistics.median(stream_times), 2),
            "ratio_median": round(statistics.median(ratios), 3),
            "ratio_quartiles": [round(q, 3) for q in statistics.quantiles(ratios, n=4)],
        },
    )


if __name__ == "__main__":
    main()
