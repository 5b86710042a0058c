"""Operations of a prompt: multiply-adds of its linear maps and its attention."""

from __future__ import annotations

from sinkstream.checkpoint.spec import DecoderSpec


def pairs(tokens: int, capacity: int) -> int:
    """Return the number of (query, visible key) pairs, including the query's own key."""
    growing = min(tokens, capacity)
    return growing * (growing + 1) // 2 + (tokens - growing) * capacity


def prefill_flops(spec: DecoderSpec, tokens: int, capacity: int) -> int:
    """Return the operations from an empty cache to the logits after a prompt; two per product.

    Args:
        spec: With a gated MLP.
        tokens: Of the prompt; logits only for the last.
        capacity: The most keys that a query sees, S + W.
    """
    query, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    weights = spec.hidden_size * (2 * query + 2 * kv + 3 * spec.intermediate_size)
    attention = 2 * query * pairs(tokens, capacity)  # scores, and values
    logits = spec.hidden_size * spec.vocab_size
    return 2 * (spec.layers * (tokens * weights + attention) + logits)
