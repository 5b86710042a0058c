"""The numbers that every description of a decoder holds, checked before memory is allocated."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sinkstream.checkpoint.families.family import GgufDescription
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_gguf
from sinkstream.checkpoint.spec import (
    Activation,
    Attention,
    Block,
    DecoderSpec,
    Dense,
    Norm,
    Pairing,
    RopeSpec,
    usual_scale,
)

# Bounds of a description. Each is several times what the largest dense decoders use.
MAX_VOCAB = 1 << 22
MAX_HIDDEN = 1 << 17
MAX_INTERMEDIATE = 1 << 20
MAX_LAYERS = 1024
MAX_HEADS = 1024
MAX_HEAD_DIM = 1024
MAX_LENGTH = 1 << 30
MIN_EPS, MAX_EPS = 1e-12, 0.1

NO_LAYER_WINDOWS = "This family has no sliding-window layers."
"""Why the description of a window is refused."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What every decoder has: sizes, which are the same in all layers, and a source of logits."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    trained_length: int
    tie_embeddings: bool
    """Whether the logits use the embedding."""

    def attention(self, rope: RopeSpec, **rest: Any) -> Attention:
        """Return attention with these sizes and the usual scale; `rest` are its other fields."""
        usual = Attention(
            self.heads, self.kv_heads, self.head_dim, rope, usual_scale(self.head_dim)
        )
        return replace(usual, **rest)

    def dense(self, **rest: Any) -> Dense:
        """Return an MLP with this size; `rest` are its other fields."""
        return Dense(self.intermediate_size, **rest)

    def spec(
        self,
        family: str,
        block: Block,
        windows: Sequence[int] = (),
        *,
        full_rope: RopeSpec | None = None,
        layers: Sequence[Block] | None = None,
        **rest: Any,
    ) -> DecoderSpec:
        """Return a decoder with these sizes.

        Args:
            family: The family's name.
            block: What all layers have in common: everything except their windows.
            windows: Each layer's own window, 0 for none; empty if no layer has one.
            full_rope: How layers without a window of their own rotate, if not as the block says.
            layers: Each layer's block, instead of `block`, `windows` and `full_rope`.
            rest: Other fields of the spec; the final norm is the block's unless it is given.
        """
        if layers is None:
            layers = with_windows(block, windows or (0,) * self.layers, full_rope)
        return DecoderSpec.of_layers(
            layers,
            family=family,
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            trained_length=self.trained_length,
            tie_embeddings=self.tie_embeddings,
            **{"final_norm": block.norm, **rest},
        )


def with_windows(
    block: Block, windows: Sequence[int], full_rope: RopeSpec | None = None
) -> list[Block]:
    """Return a layer for each window; 0 means no window of its own, and `full_rope` if given."""
    attention = block.attention
    kinds = {
        window: replace(block, mixer=replace(attention, window=window))
        for window in dict.fromkeys(windows)
    }
    if full_rope is not None:
        kinds[0] = replace(block, mixer=replace(attention, rope=full_rope))
    return [kinds[window] for window in windows]


def with_xielu(spec: DecoderSpec, numbers: Sequence[Sequence[float]]) -> DecoderSpec:
    """Return the spec with these numbers of each layer's activation, as in `Dense.xielu`."""
    layers = []
    for kind, of_layer in zip(spec.block_of_layer, numbers, strict=True):
        block = spec.blocks[kind]
        layers.append(replace(block, feed_forward=replace(block.mlp, xielu=tuple(of_layer))))
    return spec.with_layers(layers)


_CONFIG_NEUTRAL = {
    "hidden_act": "silu",
    "is_encoder_decoder": False,
}


def sizes_from_config(
    config: Fields,
    head_dim: int | None = None,
    reads: Collection[str] = (),
    *,
    tie_embeddings: bool = False,
) -> Sizes:
    """Read the sizes of a config.json, and whether the logits use the embedding.

    Args:
        config: Its fields.
        head_dim: Default for an absent `head_dim`. If None, the hidden size divided by the heads.
        reads: Fields that the family reads itself; others must not ask for what it has not.
        tie_embeddings: Default for an absent `tie_word_embeddings`.

    Raises:
        CheckpointError: A field is missing, out of range, or requires an unsupported feature.
    """
    for name, neutral in _CONFIG_NEUTRAL.items():
        if name not in reads:
            config.must_be(name, neutral)
    hidden_size = config.whole("hidden_size", 2, MAX_HIDDEN)
    heads = config.whole("num_attention_heads", 1, MAX_HEADS)
    kv_heads = config.whole("num_key_value_heads", 1, MAX_HEADS, heads)
    if heads % kv_heads:
        raise config.error("num_key_value_heads", f"divide the {heads} heads", kv_heads)
    if head_dim is None:
        if not config.has("head_dim") and hidden_size % heads:
            raise config.error(
                "num_attention_heads", f"divide the hidden size {hidden_size}", heads
            )
        head_dim = hidden_size // heads
    return Sizes(
        vocab_size=config.whole("vocab_size", 1, MAX_VOCAB),
        hidden_size=hidden_size,
        intermediate_size=config.whole("intermediate_size", 2, MAX_INTERMEDIATE),
        layers=config.whole("num_hidden_layers", 1, MAX_LAYERS),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=even(config, "head_dim", head_dim, MAX_HEAD_DIM),
        trained_length=config.whole("max_position_embeddings", 1, MAX_LENGTH),
        tie_embeddings=config.flag("tie_word_embeddings", tie_embeddings),
    )


_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu2": "relu2",
    "silu": "silu",
}


def activation_from_config(config: Fields, default: str) -> Activation:
    """Return the activation of a config.json; `default` is for an absent `hidden_act`."""
    name = config.word("hidden_act", default)
    if name not in _ACTIVATIONS:
        raise config.error("hidden_act", f"be one of {', '.join(_ACTIVATIONS)}", name)
    return _ACTIVATIONS[name]


def rms_norm_from_config(config: Fields) -> Norm:
    """Return the RMS norm of a config.json."""
    return Norm("rms", config.number("rms_norm_eps", MIN_EPS, MAX_EPS))


def layer_norm_from_config(config: Fields, name: str, *, bias: bool) -> Norm:
    """Return the layer norm of a config.json, whose epsilon has this name."""
    return Norm("layer", config.number(name, MIN_EPS, MAX_EPS, 1e-5), bias)


_GGUF_NEUTRAL = {
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attention.scale": 0.0,
    "attn_logit_softcapping": 0.0,
    "embedding_scale": 1.0,
    "expert_count": 0,
    "final_logit_softcapping": 0.0,
    "logit_scale": 1.0,
    "residual_scale": 1.0,
    "use_parallel_residual": False,
}


def sizes_from_gguf(file: GgufDescription, reads: Collection[str] = ()) -> Sizes:
    """Read the sizes of GGUF metadata, and whether the logits use the embedding.

    Args:
        file: Its metadata and the names of its tensors.
        reads: Fields that the family reads itself; others must not ask for what it has not.

    Raises:
        CheckpointError: A field is missing, out of range, or requires an unsupported feature.
    """
    metadata = file.metadata
    for name, neutral in _GGUF_NEUTRAL.items():
        if name not in reads:
            metadata.must_be(name, neutral)
    if "attention.sliding_window" not in reads:
        metadata.must_be("attention.sliding_window", 0, NO_LAYER_WINDOWS)
    hidden_size = metadata.whole("embedding_length", 2, MAX_HIDDEN)
    blocks = metadata.whole("block_count", 1, MAX_LAYERS)
    # The last blocks may be those that predict further tokens.
    layers = blocks - metadata.whole("nextn_predict_layers", 0, blocks - 1, 0)
    heads = metadata.per_layer("attention.head_count", blocks, 1, MAX_HEADS)
    kv_heads = metadata.per_layer("attention.head_count_kv", blocks, 1, MAX_HEADS, heads)
    if heads % kv_heads:
        raise metadata.error("attention.head_count_kv", f"divide the {heads} heads", kv_heads)
    if not metadata.has("attention.key_length") and hidden_size % heads:
        raise metadata.error("attention.head_count", f"divide the hidden size {hidden_size}", heads)
    head_dim = even(metadata, "attention.key_length", hidden_size // heads, MAX_HEAD_DIM)
    metadata.must_be("attention.value_length", head_dim)
    return Sizes(
        vocab_size=metadata.whole("vocab_size", 1, MAX_VOCAB, file.tokens or None),
        hidden_size=hidden_size,
        intermediate_size=metadata.per_layer("feed_forward_length", blocks, 2, MAX_INTERMEDIATE),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        trained_length=metadata.whole("context_length", 1, MAX_LENGTH),
        tie_embeddings="output.weight" not in file.tensors,  # GGUF has no field for it
    )


def gguf_rope(
    file: GgufDescription, sizes: Sizes, pairing: Pairing, *, truncates: bool = True
) -> RopeSpec:
    """Return the rotary scheme of GGUF metadata.

    Args:
        file: Its metadata and its tensor of divisors.
        sizes: What `sizes_from_gguf` returned.
        pairing: Which dimensions the family's files rotate together.
        truncates: As in `rope_from_gguf`.
    """
    metadata, divisors, long = file.metadata, file.rope_divisors, file.long_divisors
    rotary_dim = even(metadata, "rope.dimension_count", sizes.head_dim, sizes.head_dim)
    other = "rope_freqs" if long is None else "rope_factors_short"
    for numbers, tensor in ((long, "rope_factors_long"), (divisors, other)):
        if numbers is not None and len(numbers) != rotary_dim // 2:
            rule = f"be {2 * len(numbers)}, twice the length of {tensor}.weight"
            raise metadata.error("rope.dimension_count", rule, rotary_dim)
    return rope_from_gguf(
        metadata, pairing, rotary_dim, sizes.trained_length, divisors, long, truncates=truncates
    )


def rms_norm_from_gguf(metadata: Fields) -> Norm:
    """Return the RMS norm of GGUF metadata."""
    return Norm("rms", metadata.number("attention.layer_norm_rms_epsilon", MIN_EPS, MAX_EPS))


def layer_norm_from_gguf(metadata: Fields, *, bias: bool) -> Norm:
    """Return the layer norm of GGUF metadata."""
    return Norm("layer", metadata.number("attention.layer_norm_epsilon", MIN_EPS, MAX_EPS), bias)


def even(fields: Fields, name: str, default: int, high: int) -> int:
    """Return a field that must be an even number from 2 to `high`."""
    value = fields.whole(name, 2, high, default)
    if value % 2:
        raise fields.error(name, "be even", value)
    return value
