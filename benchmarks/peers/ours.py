"""sinkstream: streams for one sequence, `forward` for a batch."""

from __future__ import annotations

import time

import torch

import sinkstream
from peers.peer import Peer, prompt
from sinkstream.cli.bench import decode_seconds, prefill_seconds

WINDOW = 4092
BATCH_WINDOW = 508


class Sinkstream(Peer):
    """Streams sample and hand each token to Python; the other engines' figures do not."""

    def __init__(self, path: str, threads: int, dtype: str = "auto") -> None:
        self._model = sinkstream.load(
            path, threads=threads, window=WINDOW, max_sequences=1, dtype=dtype
        )
        self._evicted = 0  # of batches

    def prefill(self, tokens: int) -> float:
        return prefill_seconds(self._model, prompt(tokens))

    def decode(self, cached: int, tokens: int) -> float:
        return decode_seconds(self._model, prompt(cached), tokens)

    def batch(self, sequences: int, cached: int, tokens: int) -> float:
        cache = self._model.new_cache(sequences, window=BATCH_WINDOW)
        ids = torch.tensor([prompt(cached)]).expand(sequences, -1).contiguous()
        self._model.forward(ids, cache)
        started = time.perf_counter()
        # Different tokens: those that are alike would choose the same experts.
        following = torch.arange(100, 100 + 7 * sequences, 7)[:, None]
        for _ in range(tokens):
            self._model.forward(following, cache)
        seconds = (time.perf_counter() - started) / tokens
        self._evicted += cache.evicted
        return seconds

    def bytes_read(self, live: int) -> int:
        """Return the bytes of weights and cache that one token reads with `live` cached tokens."""
        return self._model.bytes_read_per_token(min(live, self._model.capacity.tokens))

    def operations(self, tokens: int) -> int:
        """Return the multiplications and additions that reading a prompt takes, each counted.

        The last layer needs keys and values of all tokens, and the rest and the logits of the last
        token only. A token sees the tokens up to itself.
        """
        spec = self._model.spec
        query, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        keys_and_values = 2 * spec.hidden_size * kv
        experts = spec.blocks[0].experts
        inner = spec.intermediate_size * (1 if experts is None else experts.chosen)
        rest = 2 * spec.hidden_size * query + 3 * spec.hidden_size * inner
        weights = (
            spec.layers * tokens * keys_and_values
            + ((spec.layers - 1) * tokens + 1) * rest
            + spec.hidden_size * spec.vocab_size
        )
        seen = (spec.layers - 1) * tokens * (tokens + 1) // 2 + tokens
        return 2 * weights + 4 * query * seen

    def experts(self, tokens: int) -> float:
        """Return how many experts of a layer N tokens choose, if each chooses by chance."""
        experts = self._model.spec.blocks[0].experts
        if experts is None:
            return 0.0
        return experts.experts * (1 - (1 - experts.chosen / experts.experts) ** tokens)

    def evicted(self) -> int:
        found: int = self._evicted + self._model.stats()["evicted_tokens"]
        return found

    def describe(self) -> str:
        runtime = self._model.runtime
        return (
            f"sinkstream {sinkstream.__version__}, kernels {runtime['kernels']}, "
            f"inputs {runtime['dtype']}, cache {runtime['kv_dtype']}"
        )
