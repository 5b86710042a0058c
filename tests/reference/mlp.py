"""The feed-forward part of a layer, and its activations."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from tests.reference.rope import Array


class Linear(Protocol):
    """A layer's product with one of its matrices."""

    def __call__(self, x: Array, name: str, has_bias: bool) -> Array:
        """Return `x` [tokens, in] times the matrix `name`: [tokens, out]."""
        ...


def transform(mlp: Any, x: Array, linear: Linear) -> Array:
    """Return down(f(gate(x)) * up(x)), or down(f(up(x))) where it has no gate."""
    up = linear(x, "up", mlp.bias)
    if mlp.gated:
        inner = ACTIVATIONS[mlp.activation](linear(x, "gate", mlp.bias)) * up
    else:
        inner = ACTIVATIONS[mlp.activation](up)
    return linear(inner, "down", mlp.bias)


def _silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def _gelu(x: Array) -> Array:
    return x * np.vectorize(math.erfc, otypes=[np.float64])(-x / math.sqrt(2)) / 2


def _gelu_tanh(x: Array) -> Array:
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def _relu2(x: Array) -> Array:
    return np.maximum(x, 0) ** 2


ACTIVATIONS = {"silu": _silu, "gelu": _gelu, "gelu_tanh": _gelu_tanh, "relu2": _relu2}
