"""sinkstream: streams for one sequence, `forward` for a batch."""

from __future__ import annotations

import time

import torch

import sinkstream
from peers.peer import Peer, prompt

WINDOW = 4092
BATCH_WINDOW = 508


class Sinkstream(Peer):
    """Streams sample and hand each token to Python; the other engines' figures are without."""

    def __init__(self, path: str, threads: int, dtype: str = "auto") -> None:
        self._model = sinkstream.load(
            path, threads=threads, window=WINDOW, max_sequences=1, dtype=dtype
        )

    def prefill(self, tokens: int) -> float:
        started = time.perf_counter()
        with self._model.stream(prompt(tokens), max_tokens=1, temperature=0) as stream:
            stream.result()
        return time.perf_counter() - started

    def decode(self, cached: int, tokens: int) -> float:
        stamps = []
        with self._model.stream(
            prompt(cached), max_tokens=tokens + 1, ignore_eos=True, temperature=0
        ) as stream:
            for event in stream.events():
                if isinstance(event, sinkstream.Token):
                    stamps.append(time.perf_counter())
        if stream.stats.evicted_tokens > 0:
            raise RuntimeError("a figure beside others must not come from a shorter cache")
        return (stamps[-1] - stamps[0]) / tokens

    def batch(self, sequences: int, cached: int, tokens: int) -> float:
        cache = self._model.new_cache(sequences, window=BATCH_WINDOW)
        ids = torch.tensor([prompt(cached)]).expand(sequences, -1).contiguous()
        self._model.forward(ids, cache)
        started = time.perf_counter()
        for _ in range(tokens):
            self._model.forward(ids[:, :1].contiguous(), cache)
        return (time.perf_counter() - started) / tokens

    def describe(self) -> str:
        runtime = self._model.runtime
        return (
            f"sinkstream {sinkstream.__version__}, kernels {runtime['kernels']}, "
            f"inputs {runtime['dtype']}, cache {runtime['kv_dtype']}"
        )
