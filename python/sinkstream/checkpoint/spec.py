"""A decoder described as data: model families fill a `DecoderSpec`, one native loop reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sinkstream import _core

Pairing = Literal["half", "interleaved"]
"""Which dimensions are rotated together: `d` and `d + rotary_dim/2`, or `2d` and `2d + 1`."""


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary positions with fixed frequencies.

    Every scheme (default, linear, llama3, YaRN) is a list of frequencies and one factor, so the
    core knows no scheme by name.
    """

    inverse_frequencies: tuple[float, ...]
    """Radians per position, one for each pair of rotated dimensions."""
    pairing: Pairing
    """Which dimensions are rotated together: `"half"`, `d` and `d + rotary_dim/2`; `"interleaved"`,
    `2d` and `2d + 1`."""
    attention_factor: float = 1.0
    """Multiplies cos and sin, of queries and of keys (YaRN); 1 for the other schemes."""

    def __repr__(self) -> str:
        """Return a summary: there are tens of frequencies."""
        frequencies = self.inverse_frequencies
        ends = f" from {frequencies[0]:g} to {frequencies[-1]:g}" if frequencies else ""
        return (
            f"<sinkstream.RopeSpec {len(frequencies)} frequencies{ends}, {self.pairing}, "
            f"attention_factor {self.attention_factor:g}>"
        )

    @property
    def rotary_dim(self) -> int:
        """Return the number of leading dimensions of a head that are rotated."""
        return 2 * len(self.inverse_frequencies)


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that keep the same tokens of a sequence."""

    layers: int
    sinks: int
    """S of these layers."""
    window: int
    """W of these layers."""

    @property
    def capacity(self) -> int:
        """Return S + W."""
        return self.sinks + self.window


def cache_groups(
    own_windows: Sequence[int], layers: int, sinks: int, window: int
) -> list[CacheGroup]:
    """Return the groups of a sequence's layers, in their order, as `csrc/cache/cache_layers.h`.

    Args:
        own_windows: As in `DecoderSpec`.
        layers: Their number.
        sinks: S of the sequence.
        window: W of the sequence.
    """
    counts = Counter(own_windows) or {0: layers}
    return [
        CacheGroup(count, 0, own) if 0 < own <= window else CacheGroup(count, sinks, window)
        for own, count in counts.items()
    ]


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A complete description of a decoder-only transformer: sizes and switches."""

    family: str
    """`"llama"`, `"mistral"`, `"phi3"`, `"qwen2"` or `"qwen3"`."""
    vocab_size: int
    """Rows of the embedding: token ids are below it."""
    hidden_size: int
    """Numbers that represent a token between layers."""
    intermediate_size: int
    """Width of the feed-forward part."""
    layers: int
    """Decoder layers."""
    heads: int
    """Query heads of a layer."""
    kv_heads: int
    """Key and value heads of a layer; each serves `heads / kv_heads` query heads."""
    head_dim: int
    """Width of one head."""
    trained_length: int
    """Longest context of the model's training, in tokens; capacity should not exceed it."""
    norm_eps: float
    """Added to the mean square in every RMS norm."""
    rope: RopeSpec
    """How queries and keys are rotated."""
    qkv_bias: bool = False
    """Whether the projections to queries, keys and values have biases."""
    output_bias: bool = False
    """Whether the attention's output projection has a bias."""
    mlp_bias: bool = False
    """Whether the feed-forward projections have biases."""
    qk_norm: bool = False
    """Whether each query and key head is RMS-normalized before it is rotated (Qwen3)."""
    tie_embeddings: bool = False
    """Whether the logits use the embedding's weights."""
    own_windows: tuple[int, ...] = ()
    """For each layer, the number of last tokens that it was trained to see, the current one
    included; 0 if it sees all. Empty if no layer has such a window. A layer keeps just that many
    tokens, and no sinks, unless the model's window is smaller."""

    def kept(self, sinks: int, window: int) -> tuple[int, int]:
        """Return S and W of the layers that keep most.

        They are as given, unless all layers keep windows of their own.
        """
        groups = cache_groups(self.own_windows, self.layers, sinks, window)
        largest = max(groups, key=lambda group: group.capacity)
        return largest.sinks, largest.window

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, as the native core reads them."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """One weight that a decoder needs: its name and shape. A vector has `cols` = 1."""

    name: str
    rows: int
    cols: int


def weight_slots(spec: DecoderSpec) -> tuple[WeightSlot, ...]:
    """List the weights that a decoder of this spec needs, in loading order.

    Returns:
        Matrices as [out_features, in_features], vectors as [n, 1].
    """
    return tuple(WeightSlot(*slot) for slot in _core.weight_slots(spec.as_dict()))
