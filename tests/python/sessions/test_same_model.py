"""A session of a different model is refused; the error lists each difference with both values."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from functools import partial
from typing import Any

import pytest

from sinkstream.checkpoint.spec import (
    Attention,
    Block,
    DecoderSpec,
    Dense,
    Norm,
    RopeSpec,
    usual_scale,
)
from sinkstream.errors import CheckpointError
from sinkstream.sessions.record import SessionModel, check_same_model, ropes_digest
from tests.python.sessions.records import MODEL, make_record

ROPE = RopeSpec(inverse_frequencies=(1.0, 0.1, 0.01), pairing="half")
OTHERS: dict[str, Any] = {
    "fingerprint": "f" * 32,
    "family": "qwen3",
    "vocab_size": 301,
    "layers": 4,
    "kv_heads": 3,
    "head_dim": 8,
    "rope": "0" * 16,
    "kv_dtype": "int8",
    "sinks": 5,
    "window": 19,
    "layer_windows": "9,0,9",
    "layer_shapes": "2x6,96,2x6",
}


def test_the_same_model_goes_on() -> None:
    check_same_model(make_record(), MODEL, "talk.session")


def test_every_setting_counts() -> None:
    assert set(OTHERS) == {entry.name for entry in fields(SessionModel)}


@pytest.mark.parametrize("name", sorted(OTHERS.keys() - {"sinks", "window"}))
def test_another_setting_is_named_with_both_values(name: str) -> None:
    expected = replace(MODEL, **{name: OTHERS[name]})
    with pytest.raises(CheckpointError, match=r'load_session: "talk\.session" must') as raised:
        check_same_model(make_record(), expected, "talk.session")
    there, here = (
        f'"{v}"' if isinstance(v, str) else v for v in (getattr(MODEL, name), OTHERS[name])
    )
    assert f"but {name} is {there} in the file and {here} in the model. Load" in str(raised.value)


@pytest.mark.parametrize(
    ("sinks", "window", "said"), [(5, 20, "25 (5 + 20)"), (9, 14, "23 (9 + 14)")]
)
def test_another_capacity_is_named_with_its_parts(sinks: int, window: int, said: str) -> None:
    expected = replace(MODEL, sinks=sinks, window=window)
    with pytest.raises(CheckpointError) as raised:
        check_same_model(make_record(), expected, "talk.session")
    says = f"but sinks + window is 24 (4 + 20) in the file and {said} in the model. Load"
    assert says in str(raised.value)


@pytest.mark.parametrize("sinks", [0, 4, 23])
def test_the_same_capacity_suffices(sinks: int) -> None:
    check_same_model(make_record(), replace(MODEL, sinks=sinks, window=24 - sinks), "talk.session")


def test_all_differences_are_listed_at_once() -> None:
    with pytest.raises(CheckpointError) as raised:
        check_same_model(make_record(), SessionModel(**{**OTHERS, "window": 30}), "talk.session")
    for name in OTHERS.keys() - {"sinks"}:
        assert f"{name} is " in str(raised.value)
    assert str(raised.value).count(";") == len(OTHERS) - 2


def three_layers() -> DecoderSpec:
    norm = Norm("rms", 1e-5)
    return DecoderSpec.of_layers(
        [Block(Attention(4, 2, 6, ROPE, usual_scale(6)), Dense(40), norm)] * 3,
        family="llama",
        vocab_size=300,
        hidden_size=30,
        trained_length=64,
        final_norm=norm,
    )


def test_a_spec_gives_its_numbers() -> None:
    model = SessionModel.of(
        three_layers(), fingerprint=MODEL.fingerprint, kv_dtype="float16", sinks=4, window=20
    )
    assert model == replace(MODEL, rope=ropes_digest([ROPE]))


def test_the_layers_memory_counts_only_where_it_differs() -> None:
    of = partial(
        SessionModel.of, three_layers(), fingerprint="", kv_dtype="int8", sinks=4, window=20
    )
    assert of(layer_memory=[(2, 6, 0)] * 3).layer_shapes == ""
    model = of(layer_memory=[(2, 6, 0), (0, 0, 96), (1, 16, 0)])
    assert model.layer_shapes == "2x6,96,1x16"
    assert model.state_bytes == 96
    assert [(group.layers, heads, dim) for group, heads, dim in model.groups()] == [
        (1, 2, 6), (1, 1, 16),
    ]  # fmt: skip


def test_a_session_without_states_is_refused_by_a_model_with_states_and_the_reverse() -> None:
    hybrid = replace(MODEL, layer_shapes="2x6,96,2x6")
    for record, expected in (
        (make_record(), hybrid),
        (make_record(layer_shapes="2x6,96,2x6"), MODEL),
    ):
        there, here = record.model.layer_shapes, expected.layer_shapes
        says = f'but layer_shapes is "{there}" in the file and "{here}" in the model. Load'
        with pytest.raises(CheckpointError, match=re.escape(says)):
            check_same_model(record, expected, "talk.session")


def test_rotary_settings_that_differ_in_one_bit_have_other_digests() -> None:
    others = [
        ROPE,
        replace(ROPE, pairing="interleaved"),
        replace(ROPE, attention_factor=1.0 + 2**-52),
        replace(ROPE, inverse_frequencies=(1.0, 0.1, 0.01 * (1 + 2**-52))),
        replace(ROPE, inverse_frequencies=(1.0, 0.1)),
    ]
    assert len({ropes_digest([rope]) for rope in others}) == len(others)
    assert len(ropes_digest([ROPE])) == 16
