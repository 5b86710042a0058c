"""The feed-forward part of a layer, with and without experts, and its activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from tests.reference.rope import Array


class Linear(Protocol):
    """A layer's product with one of its matrices."""

    def __call__(self, x: Array, name: str, has_bias: bool) -> Array:
        """Return `x` [tokens, in] times the matrix `name`: [tokens, out]."""
        ...


def feed_forward(spec: Any, x: Array, linear: Linear, vector: Callable[[str], Array]) -> Array:
    """Return what a layer's feed-forward makes of `x` [tokens, hidden].

    Args:
        spec: A `Dense` or `Experts` of `sinkstream.checkpoint.spec`.
        x: Its inputs.
        linear: The layer's products.
        vector: Returns one of the layer's vectors by its name.
    """
    if spec.kind == "dense":
        return transform(spec, x, linear)
    return np.stack([_mix(spec, token[None], linear, vector)[0] for token in x])


def transform(mlp: Any, x: Array, linear: Linear, prefix: str = "") -> Array:
    """Return down(f(gate(x)) * up(x)), or down(f(up(x))) where it has no gate."""
    up = linear(x, f"{prefix}up", mlp.bias)
    if mlp.gated:
        if mlp.activation == "clamped_swiglu":
            up = np.clip(up, -7, 7) + 1
        inner = activated(mlp, linear(x, f"{prefix}gate", mlp.bias)) * up
    else:
        inner = activated(mlp, up)
    return linear(inner, f"{prefix}down", mlp.bias)


def route(spec: Any, logits: Array, vector: Callable[[str], Array]) -> tuple[list[int], Array]:
    """Return the experts of a token, best first, and the weights of their outputs.

    Args:
        spec: An `Experts`.
        logits: Of each expert.
        vector: Returns the vectors "choice_bias" and "expert_scale", if the spec has them.
    """
    scores = {
        "softmax": _softmax,
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "softmax_of_chosen": lambda x: x,
        "sparse_mixer": lambda x: x,
    }[spec.score](logits)
    choice = scores + (vector("choice_bias") if spec.choice_bias else 0)
    groups = choice.reshape(spec.groups, -1)
    best = np.sort(groups, axis=1)[:, ::-1]
    ranks = best[:, :2].sum(1) if spec.group_score == "sum_of_two" else best[:, 0]
    outside = np.argsort(-ranks, kind="stable")[spec.chosen_groups :]
    groups[outside] = -np.inf
    chosen = [int(e) for e in np.argsort(-groups.reshape(-1), kind="stable")[: spec.chosen]]
    if spec.score == "sparse_mixer":
        weights = _mixed(logits, chosen, spec.jitter)
    elif spec.score == "softmax_of_chosen":
        weights = _softmax(scores[chosen])
    else:
        weights = scores[chosen]
    if spec.normalize:
        weights = weights / (weights.sum() + spec.normalize_eps)
    scale = vector("expert_scale")[chosen] if spec.expert_scale else 1
    return chosen, weights * spec.weight_scale * scale


def _mix(spec: Any, x: Array, linear: Linear, vector: Callable[[str], Array]) -> Array:
    """Return what the experts make of one token [1, hidden]."""
    chosen, weights = route(spec, linear(x, "router", spec.router_bias)[0], vector)
    total = np.zeros_like(x)
    for expert, weight in zip(chosen, weights, strict=True):
        total += weight * transform(spec.expert, x, linear, f"experts.{expert}.")
    if spec.shared_size:
        gate = 1 / (1 + np.exp(-linear(x, "shared_gate", False))) if spec.shared_gate else 1
        total += gate * transform(spec.expert, x, linear, "shared.")
    return total


def _softmax(x: Array) -> Array:
    parts = np.exp(x - x.max())
    return parts / parts.sum()


def _mixed(logits: Array, chosen: list[int], jitter: float) -> Array:
    """Return SparseMixer's weights: each softmax is over what is left and close to the best."""
    left, weights = logits.copy(), []
    for expert in chosen:
        best = logits[expert]
        with np.errstate(invalid="ignore"):
            is_far = (best - left) / np.maximum(np.abs(left), best) > 2 * jitter
        weights.append(_softmax(np.where(is_far | np.isinf(left), -np.inf, left))[expert])
        left[expert] = -np.inf
    return np.array(weights)


def activated(mlp: Any, x: Array) -> Array:
    """Return the activation of `x`."""
    return _xielu(x, *mlp.xielu) if mlp.activation == "xielu" else ACTIVATIONS[mlp.activation](x)


def _xielu(x: Array, alpha_p: float, alpha_n: float, beta: float, eps: float) -> Array:
    """Return xIELU (arXiv 2411.13010)."""
    positive, negative = (np.log1p(np.exp(alpha)) for alpha in (alpha_p, alpha_n))
    below = (np.expm1(np.minimum(x, eps)) - x) * (beta + negative)
    return np.where(x > 0, positive * x * x, below) + beta * x


def _silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def _gelu(x: Array) -> Array:
    return x * np.vectorize(math.erfc, otypes=[np.float64])(-x / math.sqrt(2)) / 2


def _gelu_tanh(x: Array) -> Array:
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def _relu2(x: Array) -> Array:
    return np.maximum(x, 0) ** 2


def _clamped_silu(x: Array) -> Array:
    gate = np.minimum(x, 7)
    return gate / (1 + np.exp(-1.702 * gate))


ACTIVATIONS = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu2": _relu2,
    "clamped_swiglu": _clamped_silu,
}
