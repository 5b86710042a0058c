"""Rotary positions: the frequencies of each scheme, and the rotation, in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Rope:
    """One rotary scheme: the frequency of each pair of dimensions, and which dimensions pair."""

    inverse_frequencies: Array  # [rotary_dim / 2], radians per position
    attention_factor: float = 1.0  # multiplies cos and sin (YaRN)
    pairing: Literal["half", "interleaved"] = "half"

    def rotate(self, x: Array, positions: Sequence[int]) -> Array:
        """Return `x` [tokens, heads, head_dim] rotated, each token to its own position."""
        angles = np.asarray(positions, np.float64)[:, None, None] * self.inverse_frequencies
        cos = np.cos(angles) * self.attention_factor
        sin = np.sin(angles) * self.attention_factor
        pairs = len(self.inverse_frequencies)
        if self.pairing == "half":
            first, second = slice(0, pairs), slice(pairs, 2 * pairs)
        else:
            first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
        rotated = x.copy()  # dimensions past rotary_dim are not rotated
        rotated[..., first] = x[..., first] * cos - x[..., second] * sin
        rotated[..., second] = x[..., second] * cos + x[..., first] * sin
        return rotated


def rope_from_config(config: Mapping[str, Any], head_dim: int) -> Rope:
    """Read the scheme from a Hugging Face config, in the old layout or the new one.

    Args:
        config: With `rope_parameters`, or with `rope_theta` and optionally `rope_scaling`.
        head_dim: All of it is rotated.
    """
    scheme = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    base = scheme.get("rope_theta", config.get("rope_theta", 10_000.0))
    plain = base ** (-np.arange(0, head_dim, 2) / head_dim)
    kind = scheme.get("rope_type", scheme.get("type", "default"))
    if kind == "default":
        return Rope(plain)
    if kind == "linear":
        return Rope(plain / scheme["factor"])
    if kind == "llama3":
        return Rope(_llama3(plain, scheme))
    if kind == "yarn":
        return Rope(_yarn(plain, base, head_dim, scheme), 0.1 * math.log(scheme["factor"]) + 1.0)
    raise ValueError(f"reference: rope_type {kind!r} has no fixed frequencies")


def _llama3(plain: Array, scheme: Mapping[str, Any]) -> Array:
    """Divide the frequencies of long wavelengths, keep short ones, blend between (Llama 3.1)."""
    low, high = scheme["low_freq_factor"], scheme["high_freq_factor"]
    rotations = scheme["original_max_position_embeddings"] * plain / (2 * math.pi)
    kept = np.clip((rotations - low) / (high - low), 0.0, 1.0)
    frequencies: Array = kept * plain + (1 - kept) * plain / scheme["factor"]
    return frequencies


def _yarn(plain: Array, base: float, head_dim: int, scheme: Mapping[str, Any]) -> Array:
    """Blend by the number of rotations within the original length (YaRN, section 3.2)."""
    length = scheme["original_max_position_embeddings"]

    def dimension_with(rotations: float) -> float:
        return head_dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(dimension_with(scheme.get("beta_fast", 32))), 0)
    high = min(math.ceil(dimension_with(scheme.get("beta_slow", 1))), head_dim - 1)
    divided = np.clip((np.arange(head_dim // 2) - low) / max(high - low, 0.001), 0.0, 1.0)
    frequencies: Array = divided * plain / scheme["factor"] + (1 - divided) * plain
    return frequencies
