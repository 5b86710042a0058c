"""How many operations a prompt takes: what its linear maps and its attention must multiply."""

from __future__ import annotations

from sinkstream.checkpoint.spec import DecoderSpec


def pairs(tokens: int, capacity: int) -> int:
    """Return the pairs of a query and a key that it sees, the query's own included."""
    growing = min(tokens, capacity)
    return growing * (growing + 1) // 2 + (tokens - growing) * capacity


def prefill_flops(spec: DecoderSpec, tokens: int, capacity: int) -> int:
    """Return the operations from an empty cache to the logits behind a prompt; two to a product.

    Args:
        spec: A gated MLP.
        tokens: Of the prompt; only the last one has logits.
        capacity: Keys that a query sees at most, S + W.
    """
    query, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    weights = spec.hidden_size * (2 * query + 2 * kv + 3 * spec.intermediate_size)
    attention = 2 * query * pairs(tokens, capacity)  # scores, and values
    logits = spec.hidden_size * spec.vocab_size
    return 2 * (spec.layers * (tokens * weights + attention) + logits)
