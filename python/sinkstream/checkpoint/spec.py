"""A decoder described as data: model families fill a `DecoderSpec`, one native loop reads it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, Literal

from sinkstream import _core

Pairing = Literal["half", "interleaved"]
"""Which dimensions are rotated together: `d` and `d + rotary_dim/2`, or `2d` and `2d + 1`."""

NormKind = Literal["rms", "layer"]
"""`"rms"`: divided by the root of the mean square. `"layer"`: the mean is subtracted first."""

QkNorm = Literal["none", "head", "full", "rotated_head"]
"""How queries and keys are normalized: not at all, before they are rotated each head by itself or
all heads together, or each head after it is rotated."""

Activation = Literal["silu", "gelu", "gelu_tanh", "relu2", "clamped_swiglu", "xielu"]
"""`"gelu"` is the exact one, with erf; `"relu2"` is the square of relu."""

Recurrence = Literal["short_conv", "delta_net", "mamba2"]
"""How a recurrent layer's state follows from the one before. Only `"short_conv"` is supported."""

RouterScore = Literal["softmax", "sigmoid", "softmax_of_chosen", "sparse_mixer"]
GroupScore = Literal["largest", "sum_of_two"]
"""What a router makes of its logits: a softmax over all experts, a sigmoid of each, or a softmax
over those with the best logits."""


@dataclass(frozen=True, slots=True)
class LongRope:
    """The frequencies for a cache of more than `above` tokens (longrope)."""

    above: int
    """The cache length above which these frequencies apply. A cache of exactly this length still
    has the frequencies of the `RopeSpec`."""
    inverse_frequencies: tuple[float, ...]

    def __repr__(self) -> str:
        """Return a summary: there are tens of frequencies."""
        return f"<sinkstream.LongRope above {self.above} tokens>"


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary positions with fixed frequencies.

    Every scheme (default, linear, llama3, YaRN, longrope) is a list of frequencies and one factor,
    so the core does not know any scheme by name.
    """

    inverse_frequencies: tuple[float, ...]
    """Radians per position, one per pair of rotated dimensions; empty if nothing is rotated."""
    pairing: Pairing
    """Which dimensions are rotated together. `"half"`: `d` and `d + rotary_dim/2`; `"interleaved"`:
    `2d` and `2d + 1`."""
    attention_factor: float = 1.0
    """Multiplies cos and sin for both queries and keys (YaRN, longrope); 1 for other schemes."""
    long: LongRope | None = None
    """What replaces the frequencies if the cache is large; None in the spec of a loaded model."""

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

    def at_capacity(self, capacity: int) -> RopeSpec:
        """Return the spec with the frequencies for a cache of this capacity."""
        if self.long is None:
            return self
        chosen = self.long if capacity > self.long.above else self
        return replace(self, inverse_frequencies=chosen.inverse_frequencies, long=None)


NO_ROPE = RopeSpec((), "half")
"""For layers whose queries and keys are not rotated."""


@dataclass(frozen=True, slots=True)
class Norm:
    """A normalization of one token's vector."""

    kind: NormKind
    eps: float
    """Added to the mean square or to the variance."""
    bias: bool = False
    """Whether it has a bias; only a layer norm can have one."""


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention of a layer, over a cache of keys and values."""

    kind: ClassVar[str] = "attention"
    heads: int
    """Query heads."""
    kv_heads: int
    """Key and value heads; each serves `heads / kv_heads` query heads."""
    head_dim: int
    """Width of one head."""
    rope: RopeSpec
    """How queries and keys are rotated."""
    scale: float
    """Multiplies the product of a query and a key; usually `1 / sqrt(head_dim)`."""
    window: int = 0
    """The number of most recent tokens that the layer was trained to see, including the current
    one; 0 if it sees all. It keeps just that many tokens, and no sinks, unless the model's window
    is smaller."""
    soft_cap: float = 0.0
    """The cap c: scores become `c * tanh(score / c)` (Gemma 2); 0 means no cap."""
    slopes: tuple[float, ...] = ()
    """For ALiBi, one per head: a score decreases by slope times distance. Empty without ALiBi."""
    qk_norm: QkNorm = "none"
    """How queries and keys are normalized; the norm is of the same kind as `Block.norm`."""
    qkv_bias: bool = False
    """Whether the projections to queries, keys and values have biases."""
    output_bias: bool = False
    """Whether the output projection has a bias."""
    clip: float = 0.0
    """Queries, keys and values are clamped to [-clip, clip] (MPT); 0 means no clamping."""
    temperature: float = 0.0
    """The factor b: a query at position p is multiplied by
    `1 + b * ln(1 + floor(p / temperature_length))` (Ministral 3); 0 means no scaling."""
    temperature_length: int = 1
    """Number of consecutive positions with the same temperature."""
    sink_logits: bool = False
    """Whether each head has a learned sink logit: a score in the softmax without a value, which is
    always seen (gpt-oss). It is no token, and independent of the cache's sinks."""


@dataclass(frozen=True, slots=True)
class Recurrent:
    """A layer that keeps a state of fixed size instead of keys.

    A short convolution (LFM2) splits `in(h)` into `b, c, x`, each as wide as the residual stream.
    Its output is `out(c * conv(b * x))`, where `conv` sees the last `conv_size` tokens.
    """

    kind: ClassVar[str] = "recurrent"
    recurrence: Recurrence
    conv_size: int
    """Inputs that its convolution sees, including the current one."""
    conv_bias: bool = False
    """Whether the convolution has a bias."""
    bias: bool = False
    """Whether its projections have biases."""
    heads: int = 0
    """Heads of the state, each a matrix of `state_size` times `head_dim`; 0 without one."""
    key_heads: int = 0
    """Key heads (groups in Mamba-2); each serves `heads / key_heads` heads."""
    state_size: int = 0
    """Width of a key."""
    head_dim: int = 0
    """Width of a value."""


@dataclass(frozen=True, slots=True)
class Dense:
    """The feed-forward part of a layer, if all its weights are used for every token."""

    kind: ClassVar[str] = "dense"
    intermediate_size: int
    """Its width."""
    activation: Activation = "silu"
    gated: bool = True
    """Whether it computes `down(f(gate(x)) * up(x))`; otherwise `down(f(up(x)))`."""
    bias: bool = False
    """Whether its projections have biases."""
    xielu: tuple[float, ...] = ()
    """The trained numbers of the activation "xielu": alpha_p and alpha_n before their softplus,
    beta and eps. Empty for all others."""


@dataclass(frozen=True, slots=True)
class Experts:
    """The feed-forward part of a layer, if a router chooses experts."""

    kind: ClassVar[str] = "experts"
    experts: int
    chosen: int
    """Experts chosen for each token."""
    expert: Dense
    """Every one of them."""
    score: RouterScore = "softmax"
    router_bias: bool = False
    """Whether the logits have a bias."""
    choice_bias: bool = False
    """Whether a bias is added to the scores that choose, but not to those that weigh."""
    expert_scale: bool = False
    """Whether each expert's weight is multiplied by a number of its own."""
    groups: int = 1
    """Groups that the experts are divided into."""
    chosen_groups: int = 1
    """Groups outside of which no expert is chosen."""
    group_score: GroupScore = "largest"
    """By what groups are chosen: their largest score, or the sum of their two largest."""
    normalize: bool = False
    """Whether the weights are divided by their sum plus `normalize_eps`."""
    normalize_eps: float = 0.0
    weight_scale: float = 1.0
    """Multiplies the weights."""
    jitter: float = 0.0
    """How close logits are that share a weight, with the score "sparse_mixer"."""
    shared_size: int = 0
    """Width of the expert that every token goes through; 0 if there is none."""
    shared_gate: bool = False
    """Whether that expert's output is multiplied by a gate."""


@dataclass(frozen=True, slots=True)
class Block:
    """One kind of layer: `h += s * mixer(h)`, then `h += s * feed_forward(h)`."""

    mixer: Attention | Recurrent
    """The part that reads other tokens."""
    feed_forward: Dense | Experts
    """The part that transforms each token by itself."""
    norm: Norm
    """The kind of all its norms."""
    attention_norm: bool = True
    """Whether the mixer reads the normalized residual stream."""
    mlp_norm: bool = True
    """Whether the feed-forward reads the normalized residual stream. If False in a parallel block,
    it reads what the mixer reads."""
    attention_post_norm: bool = False
    """Whether the mixer's output is normalized before it is added."""
    mlp_post_norm: bool = False
    """Whether the feed-forward's output is normalized before it is added."""
    parallel: bool = False
    """Whether the feed-forward reads the residual stream as it was before the mixer added to it."""
    residual_scale: float = 1.0
    """The factor s, which multiplies what is added to the residual stream (Granite)."""

    @property
    def attention(self) -> Attention:
        """Return the mixer of a block with attention."""
        if isinstance(self.mixer, Attention):
            return self.mixer
        raise TypeError(f"the mixer of this block is {self.mixer.kind}")

    @property
    def experts(self) -> Experts | None:
        """Return the feed-forward of a block with experts; None if it has none."""
        return self.feed_forward if isinstance(self.feed_forward, Experts) else None

    @property
    def mlp(self) -> Dense:
        """Return the MLP of a block, or what each of its experts is."""
        found = self.feed_forward
        return found.expert if isinstance(found, Experts) else found


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


def cache_groups(own_windows: Iterable[int], sinks: int, window: int) -> list[CacheGroup]:
    """Return the groups of a sequence's layers, in the order of `csrc/cache/cache_layers.h`.

    `own_windows`: of each layer with attention, 0 for none.
    """
    return [
        CacheGroup(count, 0, own) if 0 < own <= window else CacheGroup(count, sinks, window)
        for own, count in Counter(own_windows).items()
    ]


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A complete description of a decoder-only transformer: a few kinds of layers, as data."""

    family: str
    """Its name, as `model_type` in config.json: `"llama"`, `"gemma3_text"` and others."""
    vocab_size: int
    """Rows of the embedding; token ids are below this number."""
    hidden_size: int
    """Width of the residual stream."""
    trained_length: int
    """Longest context that the model was trained on, in tokens; capacity should not exceed it."""
    blocks: tuple[Block, ...]
    """The kinds of its layers, all different. They may differ in heads, key heads and head
    size."""
    block_of_layer: tuple[int, ...]
    """The kind of each layer, an index into `blocks`."""
    final_norm: Norm
    """The norm before the logits."""
    tie_embeddings: bool = False
    """Whether the logits use the embedding's weights."""
    embedding_scale: float = 1.0
    """Multiplies the embedding (Gemma, Granite)."""
    logit_scale: float = 1.0
    """Multiplies the logits (Cohere, Granite)."""
    logit_soft_cap: float = 0.0
    """The cap c: the scaled logits become `c * tanh(logit / c)` (Gemma 2); 0 means no cap."""
    logit_bias: bool = False
    """Whether the logits have a bias."""

    @classmethod
    def of_layers(cls, layers: Iterable[Block], **fields: Any) -> DecoderSpec:
        """Return a spec with these layers; equal layers share a kind.

        Args:
            layers: Each layer's block.
            **fields: All other fields.
        """
        return cls(blocks=(), block_of_layer=(), **fields).with_layers(layers)

    def with_layers(self, layers: Iterable[Block]) -> DecoderSpec:
        """Return the same spec with these layers; equal layers share a kind."""
        kinds: dict[Block, int] = {}
        block_of_layer = tuple(kinds.setdefault(block, len(kinds)) for block in layers)
        return replace(self, blocks=tuple(kinds), block_of_layer=block_of_layer)

    @property
    def layers(self) -> int:
        """Return the number of layers."""
        return len(self.block_of_layer)

    @property
    def mixers(self) -> tuple[Attention | Recurrent, ...]:
        """Return the mixer of each layer."""
        return tuple(self.blocks[kind].mixer for kind in self.block_of_layer)

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """Return the attention of each kind of layer that has it, in the order of `blocks`."""
        mixers = (block.mixer for block in self.blocks)
        return tuple(mixer for mixer in mixers if isinstance(mixer, Attention))

    @property
    def heads(self) -> int:
        """Return the most query heads of a layer."""
        return max(attention.heads for attention in self.attentions)

    @property
    def kv_heads(self) -> int:
        """Return the most key and value heads of a layer."""
        return max(attention.kv_heads for attention in self.attentions)

    @property
    def head_dim(self) -> int:
        """Return the width of the widest head."""
        return max(attention.head_dim for attention in self.attentions)

    @property
    def intermediate_size(self) -> int:
        """Return the width of the widest MLP or expert."""
        return max(block.mlp.intermediate_size for block in self.blocks)

    @property
    def own_windows(self) -> tuple[int, ...]:
        """Return each layer's own window, 0 for none; empty if no layer has one."""
        windows = tuple(each.window if isinstance(each, Attention) else 0 for each in self.mixers)
        return windows if any(windows) else ()

    @property
    def ropes(self) -> tuple[RopeSpec, ...]:
        """Return the distinct rotary schemes of the layers, in the order of `blocks`."""
        return tuple(dict.fromkeys(attention.rope for attention in self.attentions))

    def kept(self, sinks: int, window: int) -> tuple[int, int]:
        """Return S and W of the layers that keep the most tokens.

        They are as given, unless every layer has its own window of at most `window` tokens.
        """
        largest = max(self.groups(sinks, window), key=lambda group: group.capacity)
        return largest.sinks, largest.window

    def groups(self, sinks: int, window: int) -> list[CacheGroup]:
        """Return the layers that keep the same tokens; those without keys are in none."""
        attentions = (mixer for mixer in self.mixers if isinstance(mixer, Attention))
        return cache_groups((attention.window for attention in attentions), sinks, window)

    def at_capacity(self, sinks: int, window: int) -> DecoderSpec:
        """Return the spec with the frequencies for a cache with this S and W."""
        capacity = sum(self.kept(sinks, window))

        def resolved(block: Block) -> Block:
            if isinstance(block.mixer, Recurrent):
                return block
            rope = block.attention.rope.at_capacity(capacity)
            return replace(block, mixer=replace(block.attention, rope=rope))

        return replace(self, blocks=tuple(map(resolved, self.blocks)))

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, as the native core reads them.

        The core takes only one list of frequencies: see `at_capacity`.
        """
        found = asdict(self)
        for block, fields in zip(self.blocks, found["blocks"], strict=True):
            fields["mixer"]["kind"] = block.mixer.kind
            fields["feed_forward"]["kind"] = block.feed_forward.kind
            if isinstance(block.mixer, Attention):
                del fields["mixer"]["rope"]["long"]
        return found


def usual_scale(head_dim: int) -> float:
    """Return what most models multiply scores by."""
    return 1 / math.sqrt(head_dim)


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """One weight that a decoder needs: its name and shape. A vector has `cols` = 1."""

    name: str
    rows: int
    cols: int


def share_per_token(spec: DecoderSpec, slot: WeightSlot) -> Fraction:
    """Return the share of a weight that a token uses, on average over the experts of its layer."""
    layer, part = (slot.name.split(".") + [""] * 2)[1:3]
    experts = spec.blocks[spec.block_of_layer[int(layer)]].experts if part == "experts" else None
    return Fraction(1) if experts is None else Fraction(experts.chosen, experts.experts)


def weight_slots(spec: DecoderSpec) -> tuple[WeightSlot, ...]:
    """List the weights that a decoder of this spec needs, in loading order.

    Returns:
        Matrices as [out_features, in_features], vectors as [n, 1].
    """
    return tuple(WeightSlot(*slot) for slot in _core.weight_slots(spec.as_dict()))
