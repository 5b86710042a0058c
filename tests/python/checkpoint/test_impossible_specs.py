"""Descriptions of decoders that cannot be: the core answers each with a sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from sinkstream import _core
from sinkstream.checkpoint.spec import (
    NO_ROPE,
    Attention,
    Block,
    DecoderSpec,
    Dense,
    Experts,
    Norm,
    Recurrent,
    RopeSpec,
)
from sinkstream.errors import CapacityError, CheckpointError, SinkstreamError

Change = Callable[[DecoderSpec], DecoderSpec]

_NORM = Norm("rms", 1e-5)
_BLOCK = Block(Attention(6, 2, 8, NO_ROPE, 0.5), Dense(20), _NORM)
_SPEC = DecoderSpec(
    family="none",
    vocab_size=40,
    hidden_size=24,
    trained_length=100,
    blocks=(_BLOCK, replace(_BLOCK, parallel=True)),
    block_of_layer=(0, 1, 0),
    final_norm=_NORM,
)


def _spec(**fields: Any) -> Change:
    return lambda spec: replace(spec, **fields)


def _last(**fields: Any) -> Change:
    """Change the last block, so that the first must not be the only one that is checked."""
    return lambda spec: replace(spec, blocks=(_BLOCK, replace(_BLOCK, **fields)))


def _attention(**fields: Any) -> Change:
    return _last(mixer=replace(_BLOCK.attention, **fields))


def _rope(pairs: int, **fields: Any) -> Change:
    return _attention(rope=replace(RopeSpec((1.0,) * pairs, "half"), **fields))


def _experts(**fields: Any) -> Change:
    return _last(feed_forward=replace(Experts(8, 2, Dense(20)), **fields))


CASES: list[tuple[Change, str]] = [
    (_spec(vocab_size=0), "`vocab_size` must be in [1, 16777216], but is 0."),
    (_spec(vocab_size=1 << 40), "`vocab_size` must be in [1, 16777216], but is 1099511627776."),
    (_spec(hidden_size=-1), "`hidden_size` must be in [1, 1048576], but is -1."),
    (
        _spec(hidden_size=1 << 62),  # times 4 bytes, it would be 0
        "`hidden_size` must be in [1, 1048576], but is 4611686018427387904.",
    ),
    (_spec(block_of_layer=()), "`layers` must be in [1, 4096], but is 0."),
    (_spec(block_of_layer=(0, 1) * 2049), "`layers` must be in [1, 4096], but is 4098."),
    (_spec(blocks=()), "`blocks` must be in [1, 3], but is 0."),
    (_spec(block_of_layer=(0,)), "`blocks` must be in [1, 1], but is 2."),
    (_spec(block_of_layer=(0, 2)), "`block_of_layer` must be in [0, 1], but is 2."),
    (_spec(block_of_layer=(0, -1)), "`block_of_layer` must be in [0, 1], but is -1."),
    (_spec(embedding_scale=math.nan), "`embedding_scale` must be finite, but is nan."),
    (_spec(logit_scale=1e300), "`logit_scale` must be finite, but is inf."),
    (_spec(logit_soft_cap=math.nan), "`logit_soft_cap` must be at least 0, but is nan."),
    (_spec(final_norm=Norm("rms", 0.0)), "`norm_eps` must be above 0, but is 0."),
    (
        _spec(
            blocks=tuple(
                replace(_BLOCK, mixer=Attention(6, *shape, NO_ROPE, 0.5))
                for shape in ((1, 8), (2, 8), (3, 8), (6, 8), (6, 10))
            ),
            block_of_layer=(0, 1, 2, 3, 4),
        ),
        "layers must have at most 4 different combinations of `kv_heads` and `head_dim`, but have "
        "5.",
    ),
    (_attention(heads=0), "`heads` must be in [1, 4096], but is 0."),
    (_attention(heads=1 << 62), "`heads` must be in [1, 4096], but is 4611686018427387904."),
    (_attention(kv_heads=7), "`kv_heads` must be in [1, 6], but is 7."),
    (_attention(kv_heads=4), "`heads` must be a multiple of `kv_heads` (4), but is 6."),
    (_attention(head_dim=7), "`head_dim` must be even, but is 7."),
    (_attention(head_dim=514), "`head_dim` must be in [2, 512], but is 514."),
    (_rope(5), "`rotary_dim` must be in [0, 8], but is 10."),
    (
        _rope(4, inverse_frequencies=(1.0, math.nan)),
        "`inverse_frequencies` must be finite, but is nan.",
    ),
    (
        _rope(4, inverse_frequencies=(-math.inf,)),
        "`inverse_frequencies` must be finite, but is -inf.",
    ),
    (_rope(4, attention_factor=math.nan), "`attention_factor` must be above 0, but is nan."),
    (_rope(4, attention_factor=math.inf), "`attention_factor` must be above 0, but is inf."),
    (_rope(4, attention_factor=0.0), "`attention_factor` must be above 0, but is 0."),
    (_attention(scale=math.nan), "`scale` must be finite, but is nan."),
    (_attention(window=-1), "`own_windows` must be in [0, 1073741824], but is -1."),
    (_attention(soft_cap=-1.0), "`soft_cap` must be at least 0, but is -1."),
    (_attention(slopes=(0.5,) * 5), "`slopes` must be in [6, 6], but is 5."),
    (_attention(slopes=(0.5,) * 7), "`slopes` must be in [6, 6], but is 7."),
    (_attention(slopes=(math.nan,) * 6), "`slopes` must be finite, but is nan."),
    (_attention(clip=math.inf), "`clip` must be at least 0, but is inf."),
    (_attention(temperature=math.nan), "`temperature` must be finite, but is nan."),
    (
        _attention(temperature_length=0),
        "`temperature_length` must be in [1, 1099511627776], but is 0.",
    ),
    (_spec(vocab_size=1 << 70), f"`vocab_size` must be a 64-bit integer, but is {1 << 70}."),
    (
        _attention(heads=-(1 << 63) - 1),
        "`heads` must be a 64-bit integer, but is -9223372036854775809.",
    ),
    (
        _spec(block_of_layer=(0, 1 << 31)),
        "`block_of_layer` must be a list of 32-bit integers, but is (0, 2147483648).",
    ),
    (_spec(hidden_size=24.5), "`hidden_size` must be a 64-bit integer, but is 24.5."),
    (_attention(scale=10**400), f"`scale` must be a number, but is 1{'0' * 39}."),
    (
        _attention(slopes=("a",) * 6),
        "`slopes` must be a list of numbers, but is ('a', 'a', 'a', 'a', 'a', 'a').",
    ),
    (_attention(qk_norm="some"), '`qk_norm` must not be "some".'),
    *(
        (
            _attention(qk_norm="rotated_head", **factor),
            '`qk_norm` must be "head" or "full" where queries or keys are multiplied by a factor '
            'as they are rotated, but is "rotated_head".',
        )
        for factor in ({"temperature": 0.1}, {"rope": RopeSpec((1.0,), "half", 1.3)})
    ),
    (
        _last(mixer=replace(_BLOCK.attention, qk_norm="rotated_head"), norm=Norm("layer", 1e-5)),
        '`qk_norm` must be "head" or "full" where norms are layer norms, but is "rotated_head".',
    ),
    (_last(feed_forward=Dense(20, "xielu")), "`xielu` must be in [4, 4], but is 0."),
    (
        _last(feed_forward=Dense(20, xielu=(1.0, 1.0, 0.5, -1.0))),
        "`xielu` must be in [0, 0], but is 4.",
    ),
    (
        _last(feed_forward=Dense(20, "xielu", xielu=(1.0, 1.0, 0.5, 1.0))),
        "`xielu` must be 0 or less at its end, ε, but is above 0.",
    ),
    (_last(feed_forward=Dense(0)), "`intermediate_size` must be in [1, 1048576], but is 0."),
    (
        _last(feed_forward=Dense(1 << 62)),
        "`intermediate_size` must be in [1, 1048576], but is 4611686018427387904.",
    ),
    (_last(feed_forward=Dense(20, "tanh")), '`activation` must not be "tanh".'),  # type: ignore[arg-type]
    (_last(norm=Norm("rms", math.nan)), "`norm_eps` must be above 0, but is nan."),
    (_last(residual_scale=math.nan), "`residual_scale` must be finite, but is nan."),
    (
        _last(mixer=Recurrent("delta_net", 4, heads=4, key_heads=2, state_size=8, head_dim=8)),
        '`recurrence` must be "short_conv"; the others are not supported yet.',
    ),
    (_last(mixer=Recurrent("short_conv", 1)), "`conv_size` must be in [2, 64], but is 1."),
    (
        _last(mixer=Recurrent("short_conv", 3, state_size=8)),
        "`state_size` must be in [0, 0], but is 8.",
    ),
    (_last(mixer=Recurrent("lstm", 4)), '`recurrence` must not be "lstm".'),  # type: ignore[arg-type]
    (_experts(experts=0), "`experts` must be in [1, 1024], but is 0."),
    (_experts(experts=1 << 40), "`experts` must be in [1, 1024], but is 1099511627776."),
    (_experts(chosen=9), "`chosen` must be in [1, 8], but is 9."),
    (_experts(chosen=0), "`chosen` must be in [1, 1024], but is 0."),
    (_experts(groups=3), "`experts` must be a multiple of `groups` (3), but is 8."),
    (_experts(chosen_groups=2), "`chosen_groups` must be in [1, 1], but is 2."),
    (_experts(groups=4, chosen=3), "`chosen` must be in [1, 2], but is 3."),
    (_experts(expert=Dense(0)), "`intermediate_size` must be in [1, 1048576], but is 0."),
    (_experts(shared_size=-1), "`shared_size` must be in [0, 1048576], but is -1."),
    (_experts(normalize_eps=math.nan), "`normalize_eps` must be at least 0, but is nan."),
    (_experts(weight_scale=math.inf), "`weight_scale` must be finite, but is inf."),
    (_experts(score="best"), '`score` must not be "best".'),
    (
        _last(parallel=True, attention_norm=False),
        "a parallel block must have `attention_norm`, but has none.",
    ),
]


def test_the_spec_that_is_changed_is_possible() -> None:
    assert len(_core.weight_slots(_SPEC.as_dict())) == 1 + 3 * 9 + 2
    _core.ModelBuilder(_SPEC.as_dict())


@pytest.mark.parametrize(("change", "sentence"), CASES, ids=[sentence for _, sentence in CASES])
def test_a_decoder_that_cannot_be_is_one_sentence(change: Change, sentence: str) -> None:
    fields = change(_SPEC).as_dict()
    for read in (_core.weight_slots, _core.ModelBuilder):
        with pytest.raises(CheckpointError) as error:
            read(fields)
        assert str(error.value) == f"load: {sentence}"


@pytest.mark.parametrize("part", ["mixer", "feed_forward", "norm"])
def test_the_core_reads_every_field(part: str) -> None:
    fields = _SPEC.as_dict()
    fields["blocks"][1][part]["another"] = 0
    with pytest.raises(SinkstreamError, match="fields, of which the core reads"):
        _core.weight_slots(fields)


def _floats(spec: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every field of a spec that holds numbers which are not whole."""
    for each in fields(spec):
        value = getattr(spec, each.name)
        if is_dataclass(value):
            yield from _floats(value, (*path, each.name))
        elif isinstance(value, float) or each.name in ("inverse_frequencies", "slopes"):
            yield (*path, each.name)


def _changed(spec: Any, path: tuple[str, ...], value: float) -> Any:
    name, *rest = path
    old = getattr(spec, name)
    new = _changed(old, tuple(rest), value) if rest else value
    return replace(spec, **{name: (value,) * len(old) if isinstance(old, tuple) else new})


_FULL = replace(
    _BLOCK,
    mixer=replace(_BLOCK.attention, rope=RopeSpec((1.0, 0.1), "half"), slopes=(0.5,) * 6),
)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_number_may_be_nan_or_infinite(value: float) -> None:
    of_block, of_spec = list(_floats(_FULL)), list(_floats(replace(_SPEC, blocks=())))
    assert len(of_block) == 9
    assert len(of_spec) == 4
    wrong = [replace(_SPEC, blocks=(_BLOCK, _changed(_FULL, path, value))) for path in of_block]
    wrong += [_changed(_SPEC, path, value) for path in of_spec]
    for spec, path in zip(wrong, [*of_block, *of_spec], strict=True):
        name = "norm_eps" if path[-1] == "eps" else path[-1]
        with pytest.raises(CheckpointError, match=f"^load: `{name}` must be .*, but is {value}"):
            _core.weight_slots(spec.as_dict())


def test_the_largest_sizes_overflow_no_product() -> None:
    """Matrices of 2^44 numbers in 4,096 layers: their bytes still fit into 64 bits."""
    most = Block(Attention(4096, 4096, 512, NO_ROPE, 0.5), Dense(1 << 20), _NORM)
    spec = replace(
        _SPEC, vocab_size=1 << 24, hidden_size=1 << 20, blocks=(most,), block_of_layer=(0,) * 4096
    )
    builder = _core.ModelBuilder(spec.as_dict())
    bytes_needed = 0
    for name, rows, cols in _core.weight_slots(spec.as_dict()):
        builder.declare(name, "F32", "F32", rows, cols)
        bytes_needed += 4 * rows * cols
    assert 2**57 < bytes_needed < 2**63
    with pytest.raises(CapacityError) as error:
        builder.read([], 1)
    assert str(error.value) == (
        f"memory: the system cannot allocate {bytes_needed / 1e12:.1f} TB for the weights. "
        "Choose a smaller window or fewer sequences."
    )
