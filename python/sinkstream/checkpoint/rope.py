"""Rotary schemes, each reduced to its list of inverse frequencies, in float64.

Dynamic NTK is refused: its frequencies depend on the length of the text, and an endless text has no
length. Longrope's frequencies depend on whether that length is above a limit; here, the cache's
size decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import LongRope, Pairing, RopeSpec
from sinkstream.errors import CheckpointError

BASES = (1.001, 1e12)
"""The least and the largest base."""
_MAX_FACTOR = 1e6
_MAX_LENGTH = 1 << 30
_SCHEMES = ("default", "linear", "llama3", "longrope", "yarn")
_WHY_NOT = {
    "dynamic": "Its frequencies depend on the length of the text, and a stream has no length.",
}
_DIVISORS = (1e-3, 1e6)


def default_frequencies(base: float, rotary_dim: int) -> list[float]:
    """Return radians per position for each pair of dimensions (RoFormer, section 3.2)."""
    return [base ** (-2.0 * pair / rotary_dim) for pair in range(rotary_dim // 2)]


def linear_frequencies(frequencies: Sequence[float], factor: float) -> list[float]:
    """Divide all frequencies by one factor (position interpolation)."""
    return [frequency / factor for frequency in frequencies]


def llama3_frequencies(
    frequencies: Sequence[float], factor: float, low: float, high: float, original_length: float
) -> list[float]:
    """Slow the pairs with fewer than `low` rotations in the original length; blend up to `high`."""
    found = []
    for frequency in frequencies:
        rotations = original_length * frequency / (2.0 * math.pi)
        kept = min(max((rotations - low) / (high - low), 0.0), 1.0)  # 1: as trained, 0: slowed
        found.append((1.0 - kept) * frequency / factor + kept * frequency)
    return found


def yarn_frequencies(
    frequencies: Sequence[float],
    base: float,
    factor: float,
    original_length: float,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> list[float]:
    """Slow the slow pairs, keep the fast ones, blend linearly in between (YaRN, section 3.2)."""
    rotary_dim = 2 * len(frequencies)

    def pair_with(rotations: float) -> float:
        wavelength = original_length / (rotations * 2.0 * math.pi)
        return rotary_dim * math.log(wavelength) / (2.0 * math.log(base))

    low, high = pair_with(beta_fast), pair_with(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0.0), min(high, rotary_dim - 1.0)
    if low == high:
        high += 0.001  # as in transformers: the blend becomes a step
    found = []
    for pair, frequency in enumerate(frequencies):
        slowed = min(max((pair - low) / (high - low), 0.0), 1.0)
        found.append(slowed * frequency / factor + (1.0 - slowed) * frequency)
    return found


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """Return the factor by which YaRN multiplies cos and sin (section 3.4)."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def longrope_attention_factor(factor: float, original_length: float) -> float:
    """Return the factor by which longrope multiplies cos and sin (LongRoPE's code)."""
    longer = math.log(factor) / math.log(original_length) if factor > 1.0 else 0.0
    return math.sqrt(1.0 + longer)


def divided(frequencies: Sequence[float], divisors: Sequence[float]) -> tuple[float, ...]:
    """Divide each frequency by a number of its own."""
    return tuple(frequency / by for frequency, by in zip(frequencies, divisors, strict=True))


def rope_from_config(
    config: Fields,
    head_dim: int,
    trained_length: int,
    *,
    pairing: Pairing = "half",
    partial: float | None = None,
    layer_type: str | None = None,
    base: float = 10_000.0,
    base_name: str = "rope_theta",
    has_alpha: bool = False,
    has_multipliers: bool = False,
) -> RopeSpec:
    """Read the rotary scheme of a config.json.

    Both layouts are read: `rope_parameters` (transformers 5), and the older `rope_theta` with
    `rope_scaling`. If both are present, the older one wins, as in transformers.

    Args:
        config: Its fields.
        head_dim: The width of a head.
        trained_length: The original length if the config does not give one.
        pairing: Which dimensions the family rotates together.
        partial: What part of a head is rotated if the config does not say; None: all of it, and
            the config must not ask for less.
        layer_type: The layers, such as "full_attention", whose scheme is wanted if the config has
            one for each type. If None, all layers must have the same scheme. If such a config has
            only one scheme, it is for "full_attention", and other layers have none.
        base: The base if the config does not give one.
        base_name: The field of the base in the older layout.
        has_alpha: Whether `alpha` makes the dynamic scheme one with a larger, constant base.
        has_multipliers: Whether longrope's attention factor is given as `short_mscale` and
            `long_mscale`.

    Raises:
        CheckpointError: The scheme is unknown or depends on length, or a number is out of range.
    """
    scaling = config.group("rope_scaling") or config.group("rope_parameters")
    if scaling is not None:
        nested = [name for name in scaling.names() if name.endswith("_attention")]
        if nested and layer_type is None:
            raise CheckpointError(
                f"load: {scaling.where} must describe one rotary scheme for all layers, but has "
                f"several ({', '.join(sorted(nested))})."
            )
        if nested and layer_type is not None:
            scaling = scaling.group(layer_type)
        elif layer_type not in (None, "full_attention"):
            scaling = None
    rotary_dim = _rotary_dim(config, scaling, head_dim, partial)
    base = config.number(base_name, *BASES, base)
    if scaling is not None and has_alpha and scaling.has("alpha"):
        return RopeSpec(_alpha_frequencies(scaling, rotary_dim, base), pairing)
    if scaling is not None and has_multipliers and scaling.has("short_mscale"):
        scaling = _with_one_multiplier(scaling)
    found = _from_scaling(config, scaling, rotary_dim, trained_length, base)
    return replace(found, pairing=pairing)


def _alpha_frequencies(scaling: Fields, rotary_dim: int, base: float) -> tuple[float, ...]:
    """Return the frequencies of Hunyuan's "dynamic" scheme, which depends on no length."""
    scaling.must_be("rope_type" if scaling.has("rope_type") else "type", "dynamic")
    alpha = scaling.number("alpha", 1e-3, _MAX_FACTOR)
    base = scaling.number("rope_theta", *BASES, base)
    base *= alpha ** (rotary_dim / max(rotary_dim - 2, 1))  # of a single pair, any base will do
    return tuple(default_frequencies(base, rotary_dim))


def _with_one_multiplier(scaling: Fields) -> Fields:
    """Return the fields with one attention factor in place of Phi-3.5-MoE's two."""
    factor = scaling.number("short_mscale", 1e-3, 1e3)
    scaling.must_be("long_mscale", factor, "An endless text needs the same for every length.")
    return scaling.without("short_mscale", "long_mscale").with_defaults(
        {"attention_factor": factor}
    )


def _rotary_dim(
    config: Fields, scaling: Fields | None, head_dim: int, partial: float | None
) -> int:
    """Return how many dimensions are rotated: rounded down, as in transformers."""
    name = "partial_rotary_factor"
    if partial is None:
        config.must_be(name, 1)
        if scaling is not None:
            scaling.must_be(name, 1)
        return head_dim
    partial = config.number(name, 0, 1, partial)
    fields = config
    if scaling is not None and scaling.has(name):
        fields, partial = scaling, scaling.number(name, 0, 1)
    rotary_dim = int(head_dim * partial)
    if rotary_dim % 2:
        raise fields.error(name, f"rotate an even number of the {head_dim} dimensions", partial)
    return rotary_dim


def _from_scaling(
    config: Fields, scaling: Fields | None, head_dim: int, trained_length: int, base: float
) -> RopeSpec:
    if scaling is None:
        return RopeSpec(tuple(default_frequencies(base, head_dim)), "half")
    base = scaling.number("rope_theta", *BASES, base)
    frequencies = default_frequencies(base, head_dim)
    name = "rope_type" if scaling.has("rope_type") else "type"
    scheme = scaling.word(name, "default")
    if scheme == "default":
        return RopeSpec(tuple(frequencies), "half")
    if scheme == "linear":
        factor = scaling.number("factor", 1, _MAX_FACTOR)
        return RopeSpec(tuple(linear_frequencies(frequencies, factor)), "half")
    original = scaling.whole("original_max_position_embeddings", 1, _MAX_LENGTH, trained_length)
    original = config.whole("original_max_position_embeddings", 1, _MAX_LENGTH, original)
    if scheme == "llama3":
        return _llama3(scaling, frequencies, original)
    if scheme in ("longrope", "su"):
        return _longrope(scaling, frequencies, original, trained_length)
    if scheme == "yarn":
        return _yarn(scaling, frequencies, base, original, trained_length)
    rule = f"be one of {', '.join(_SCHEMES)}"
    raise scaling.error(name, rule, scheme, _WHY_NOT.get(scheme, ""))


def _llama3(scaling: Fields, frequencies: list[float], original: int) -> RopeSpec:
    factor = scaling.number("factor", 1, _MAX_FACTOR)
    low = scaling.number("low_freq_factor", 1e-6, _MAX_FACTOR)
    high = scaling.number("high_freq_factor", 1e-6, _MAX_FACTOR)
    if high <= low:
        raise scaling.error(
            "high_freq_factor", f"be greater than `low_freq_factor` ({low:g})", high
        )
    return RopeSpec(tuple(llama3_frequencies(frequencies, factor, low, high, original)), "half")


def _longrope(
    scaling: Fields, frequencies: list[float], original: int, trained_length: int
) -> RopeSpec:
    for name in ("short_mscale", "long_mscale"):
        scaling.must_be(name, None)
    short, long = (
        divided(frequencies, scaling.numbers(name, len(frequencies), *_DIVISORS))
        for name in ("short_factor", "long_factor")
    )
    factor = scaling.number("factor", 0, _MAX_FACTOR, trained_length / original)
    attention_factor = longrope_attention_factor(factor, max(original, 2))
    attention_factor = scaling.number("attention_factor", 1e-3, 1e3, attention_factor)
    return RopeSpec(short, "half", attention_factor, LongRope(original, long))


def _yarn(
    scaling: Fields, frequencies: list[float], base: float, original: int, trained_length: int
) -> RopeSpec:
    factor = scaling.number("factor", 1, _MAX_FACTOR, max(trained_length / original, 1.0))
    found = yarn_frequencies(
        frequencies,
        base,
        factor,
        original,
        scaling.number("beta_fast", 1e-3, _MAX_FACTOR, 32.0),
        scaling.number("beta_slow", 1e-3, _MAX_FACTOR, 1.0),
        scaling.flag("truncate", True),
    )
    attention_factor = yarn_attention_factor(factor)
    mscale = scaling.number("mscale", 0, 100, 0.0)
    mscale_all_dim = scaling.number("mscale_all_dim", 0, 100, 0.0)
    if mscale and mscale_all_dim:
        attention_factor = yarn_attention_factor(factor, mscale)
        attention_factor /= yarn_attention_factor(factor, mscale_all_dim)
    attention_factor = scaling.number("attention_factor", 1e-3, 1e3, attention_factor)
    return RopeSpec(tuple(found), "half", attention_factor)


def rope_from_gguf(
    metadata: Fields,
    pairing: Pairing,
    rotary_dim: int,
    trained_length: int,
    divisors: Sequence[float] | None,
    long_divisors: Sequence[float] | None = None,
    *,
    truncates: bool = True,
) -> RopeSpec:
    """Read the rotary scheme of a GGUF file.

    Args:
        metadata: The fields with the architecture's prefix.
        pairing: Which dimensions this architecture's files rotate together.
        rotary_dim: Number of dimensions that are rotated.
        trained_length: The original length if the file does not give one.
        divisors: The numbers of `rope_freqs.weight`, one for each pair, or None. They encode the
            llama3 scheme. For longrope, the numbers for a short cache.
        long_divisors: Longrope's other numbers, or None.
        truncates: Whether YaRN blends between whole pairs. A file does not say it; llama.cpp always
            does.

    Raises:
        CheckpointError: The scheme is unknown or depends on length, or a number is out of range.
    """
    base = metadata.number("rope.freq_base", *BASES, 10_000.0)
    frequencies = default_frequencies(base, rotary_dim)
    if divisors is not None:
        unscaled, frequencies = frequencies, list(divided(frequencies, divisors))
        if long_divisors is not None:
            return _gguf_longrope(
                metadata, pairing, frequencies, divided(unscaled, long_divisors), trained_length
            )
    # A factor without a type is linear. The oldest files call it `scale_linear`.
    factor = metadata.number("rope.scale_linear", 1, _MAX_FACTOR, 1.0)
    factor = metadata.number("rope.scaling.factor", 1, _MAX_FACTOR, factor)
    scheme = metadata.word("rope.scaling.type", "linear")
    if scheme == "none":
        return RopeSpec(tuple(frequencies), pairing)
    if scheme == "linear":
        return RopeSpec(tuple(linear_frequencies(frequencies, factor)), pairing)
    if scheme == "longrope":
        rule = "be linear, none or yarn in a file without tensors of short and long factors"
        raise metadata.error("rope.scaling.type", rule, scheme)
    if scheme != "yarn":
        rule = "be one of linear, longrope, none, yarn"
        raise metadata.error("rope.scaling.type", rule, scheme, _WHY_NOT.get(scheme, ""))
    return _gguf_yarn(metadata, pairing, frequencies, base, factor, trained_length, truncates)


def _gguf_longrope(
    metadata: Fields,
    pairing: Pairing,
    short: Sequence[float],
    long: Sequence[float],
    trained_length: int,
) -> RopeSpec:
    metadata.must_be("rope.scaling.type", "longrope")
    metadata.must_be("rope.scaling.factor", 1.0)
    original = metadata.whole(
        "rope.scaling.original_context_length", 1, _MAX_LENGTH, trained_length
    )
    attention_factor = metadata.number("rope.scaling.attn_factor", 1e-3, 1e3, 1.0)
    return RopeSpec(tuple(short), pairing, attention_factor, LongRope(original, tuple(long)))


def _gguf_yarn(
    metadata: Fields,
    pairing: Pairing,
    frequencies: list[float],
    base: float,
    factor: float,
    trained_length: int,
    truncates: bool,
) -> RopeSpec:
    metadata.must_be("rope.scaling.yarn_ext_factor", 1.0)
    original = metadata.whole(
        "rope.scaling.original_context_length", 1, _MAX_LENGTH, trained_length
    )
    found = yarn_frequencies(
        frequencies,
        base,
        factor,
        original,
        metadata.number("rope.scaling.yarn_beta_fast", 1e-3, _MAX_FACTOR, 32.0),
        metadata.number("rope.scaling.yarn_beta_slow", 1e-3, _MAX_FACTOR, 1.0),
        truncates,
    )
    usual = yarn_attention_factor(factor)
    log_multiplier = metadata.number("rope.scaling.yarn_log_multiplier", 0, 100, 0.0)
    found_factor = (
        usual / yarn_attention_factor(factor, log_multiplier) if log_multiplier else usual
    )
    # The converter copies it from config.json, but llama.cpp does not use it.
    stated = metadata.number("rope.scaling.yarn_attn_factor", 1e-3, 1e3, 1.0)
    if stated != 1.0 and not math.isclose(stated, found_factor, rel_tol=1e-4):
        rule = f"be {found_factor:g}, as follows from the other fields, or absent"
        raise metadata.error("rope.scaling.yarn_attn_factor", rule, stated)
    scale = metadata.number("rope.scaling.attn_factor", 1e-3, 1e3, 1.0)
    return RopeSpec(tuple(found), pairing, scale * found_factor)
