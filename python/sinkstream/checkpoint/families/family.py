"""A model family: how its descriptions become a `DecoderSpec`, and where its tensors are.

What the families share is here; each family's own file holds what it adds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES, GGUF_NAMES, WeightNames
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.rope import rope_from_config, rope_from_gguf
from sinkstream.checkpoint.spec import DecoderSpec, Pairing

# Bounds of a description, checked before anything is allocated from it. Each is several times what
# the largest dense decoders use.
_MAX_VOCAB = 1 << 22
_MAX_HIDDEN = 1 << 17
_MAX_INTERMEDIATE = 1 << 20
_MAX_LAYERS = 1024
_MAX_HEADS = 1024
_MAX_HEAD_DIM = 1024
_MAX_LENGTH = 1 << 30


@dataclass(frozen=True, slots=True)
class GgufDescription:
    """Everything in a GGUF file that describes the decoder."""

    metadata: Fields
    """The fields with the architecture's prefix."""
    tensors: frozenset[str]
    """Names. GGUF has no fields for biases and ties: the presence of a tensor decides."""
    tokens: int
    """Size of the file's vocabulary list; 0 if it has none."""
    rope_divisors: tuple[float, ...] | None
    """The numbers of `rope_freqs.weight`."""


@dataclass(frozen=True, slots=True)
class Family:
    """One family, named as `model_type` in config.json and as the architecture in GGUF."""

    name: str
    spec_from_config: Callable[[Fields], DecoderSpec]
    spec_from_gguf: Callable[[GgufDescription], DecoderSpec]
    folder_names: WeightNames = FOLDER_NAMES
    gguf_names: WeightNames = GGUF_NAMES


@dataclass(frozen=True, slots=True)
class Switches:
    """The boolean fields of a `DecoderSpec` in which the families differ."""

    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False


_CONFIG_NEUTRAL = {
    "hidden_act": "silu",
    "is_encoder_decoder": False,
}
_NO_LAYER_WINDOWS = "Layers of this family have no windows of their own."
_FULL, _SLIDING = "full_attention", "sliding_attention"


def decoder_from_config(
    config: Fields,
    family: str,
    switches: Switches,
    own_windows: tuple[int, ...],
    head_dim: int | None = None,
) -> DecoderSpec:
    """Read the sizes and switches of a config.json.

    Args:
        config: Its fields.
        family: The family's name.
        switches: The family's biases and norms.
        own_windows: Of each layer, as in `DecoderSpec`.
        head_dim: Default for an absent `head_dim`. If None, the hidden size divided by the heads.

    Raises:
        CheckpointError: A field is missing, out of range, or requires an unsupported feature.
    """
    for name, neutral in _CONFIG_NEUTRAL.items():
        config.must_be(name, neutral)
    hidden_size = config.whole("hidden_size", 2, _MAX_HIDDEN)
    heads = config.whole("num_attention_heads", 1, _MAX_HEADS)
    kv_heads = config.whole("num_key_value_heads", 1, _MAX_HEADS, heads)
    if heads % kv_heads:
        raise config.error("num_key_value_heads", f"divide the {heads} heads", kv_heads)
    if head_dim is None:
        if not config.has("head_dim") and hidden_size % heads:
            raise config.error(
                "num_attention_heads", f"divide the hidden size {hidden_size}", heads
            )
        head_dim = hidden_size // heads
    head_dim = _even(config, "head_dim", head_dim, _MAX_HEAD_DIM)
    trained_length = config.whole("max_position_embeddings", 1, _MAX_LENGTH)
    return DecoderSpec(
        family=family,
        vocab_size=config.whole("vocab_size", 1, _MAX_VOCAB),
        hidden_size=hidden_size,
        intermediate_size=config.whole("intermediate_size", 2, _MAX_INTERMEDIATE),
        layers=config.whole("num_hidden_layers", 1, _MAX_LAYERS),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        trained_length=trained_length,
        norm_eps=config.number("rms_norm_eps", 1e-12, 0.1),
        rope=rope_from_config(config, head_dim, trained_length),
        qkv_bias=switches.qkv_bias,
        output_bias=switches.output_bias,
        mlp_bias=switches.mlp_bias,
        qk_norm=switches.qk_norm,
        tie_embeddings=config.flag("tie_word_embeddings", False),
        own_windows=own_windows,
    )


def no_windows(config: Fields) -> tuple[int, ...]:
    """Refuse windows of single layers, in a family whose layers have none; return nothing."""
    config.must_be("sliding_window", None, _NO_LAYER_WINDOWS)
    config.all_must_be("layer_types", _FULL, _NO_LAYER_WINDOWS)
    return ()


def one_window(config: Fields, default: int | None) -> tuple[int, ...]:
    """Return each layer's own window: the same in all layers, or none at all if it is null.

    Args:
        config: The fields.
        default: The window if the field is absent; None: there is none either.
    """
    if not config.has("sliding_window") and (default is None or config.is_null("sliding_window")):
        config.all_must_be("layer_types", _FULL)
        return ()
    config.all_must_be("layer_types", _SLIDING)
    layers = config.whole("num_hidden_layers", 1, _MAX_LAYERS)
    return (config.whole("sliding_window", 1, _MAX_LENGTH, default),) * layers


def switched_windows(config: Fields) -> tuple[int, ...]:
    """Return each layer's own window, 0 for none; empty if no layer has one.

    Qwen's configs have a window that a switch enables for the layers from `max_window_layers` on,
    or for those that `layer_types` lists; transformers has defaults for the fields that are absent.
    """
    layers = config.whole("num_hidden_layers", 1, _MAX_LAYERS)
    has_window = config.flag("use_sliding_window", False) and not config.is_null("sliding_window")
    window = config.whole("sliding_window", 1, _MAX_LENGTH, 4096) if has_window else 0
    first = config.whole("max_window_layers", 0, _MAX_LENGTH, 28)
    listed = config.words("layer_types", layers, (_FULL, _SLIDING))
    if listed is None:
        windows = tuple(window if layer >= first else 0 for layer in range(layers))
    elif window == 0 and _SLIDING in listed:
        rule = f"be a list of only {quoted(_FULL)} without `use_sliding_window` and a window"
        raise config.error("layer_types", rule)
    else:
        windows = tuple(window if kind == _SLIDING else 0 for kind in listed)
    return windows if any(windows) else ()


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


def decoder_from_gguf(
    file: GgufDescription,
    family: str,
    pairing: Pairing,
    switches: Switches,
    *,
    has_windows: bool = False,
) -> DecoderSpec:
    """Read the sizes and switches of GGUF metadata.

    Args:
        file: Its metadata and the names of its tensors.
        family: The family's name.
        pairing: Which dimensions its files rotate together.
        switches: The family's biases and norms.
        has_windows: Whether `attention.sliding_window` is the window of every layer. Otherwise
            there must be none.

    Raises:
        CheckpointError: A field is missing, out of range, or requires an unsupported feature.
    """
    metadata = file.metadata
    for name, neutral in _GGUF_NEUTRAL.items():
        metadata.must_be(name, neutral)
    if not has_windows:
        metadata.must_be("attention.sliding_window", 0, _NO_LAYER_WINDOWS)
    window = metadata.whole("attention.sliding_window", 0, _MAX_LENGTH, 0)
    hidden_size = metadata.whole("embedding_length", 2, _MAX_HIDDEN)
    layers = metadata.whole("block_count", 1, _MAX_LAYERS)
    heads = metadata.per_layer("attention.head_count", layers, 1, _MAX_HEADS)
    kv_heads = metadata.per_layer("attention.head_count_kv", layers, 1, _MAX_HEADS, heads)
    if heads % kv_heads:
        raise metadata.error("attention.head_count_kv", f"divide the {heads} heads", kv_heads)
    if not metadata.has("attention.key_length") and hidden_size % heads:
        raise metadata.error("attention.head_count", f"divide the hidden size {hidden_size}", heads)
    head_dim = _even(metadata, "attention.key_length", hidden_size // heads, _MAX_HEAD_DIM)
    metadata.must_be("attention.value_length", head_dim)
    rotary_dim = _even(metadata, "rope.dimension_count", head_dim, head_dim)
    trained_length = metadata.whole("context_length", 1, _MAX_LENGTH)
    divisors = file.rope_divisors
    if divisors is not None and len(divisors) != rotary_dim // 2:
        rule = f"be twice the {len(divisors)} numbers of rope_freqs.weight"
        raise metadata.error("rope.dimension_count", rule, rotary_dim)
    return DecoderSpec(
        family=family,
        vocab_size=metadata.whole("vocab_size", 1, _MAX_VOCAB, file.tokens or None),
        hidden_size=hidden_size,
        intermediate_size=metadata.per_layer("feed_forward_length", layers, 2, _MAX_INTERMEDIATE),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        trained_length=trained_length,
        norm_eps=metadata.number("attention.layer_norm_rms_epsilon", 1e-12, 0.1),
        rope=rope_from_gguf(metadata, pairing, rotary_dim, trained_length, divisors),
        qkv_bias=switches.qkv_bias,
        output_bias=switches.output_bias,
        mlp_bias=switches.mlp_bias,
        qk_norm=switches.qk_norm,
        tie_embeddings="output.weight" not in file.tensors,
        own_windows=(window,) * layers if window else (),
    )


def _even(fields: Fields, name: str, default: int, high: int) -> int:
    value = fields.whole(name, 2, high, default)
    if value % 2:
        raise fields.error(name, "be even", value)
    return value
