"""Which options `Model.stream` refuses, and how it completes missing ones."""

from __future__ import annotations

import math
import re
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from sinkstream.errors import InvalidArgument
from sinkstream.request.options import OPTIONS, Sampling
from sinkstream.request.stream_request import StreamRequest, make_request
from sinkstream.request.value_kinds import Integer
from tests.python.request.ranges import INTEGERS, NUMBERS

VOCAB = 300
NEUTRAL = Sampling()


def request(*, defaults: Sampling = NEUTRAL, **options: Any) -> StreamRequest:
    return make_request([5], options, defaults=defaults, vocab_size=VOCAB)


def test_a_request_without_options_is_neutral() -> None:
    options = {
        "logit_bias": {}, "logprobs": 0, "prompt_logprobs": None, "seed": 1, "max_tokens": None,
        "timeout_s": None, "prediction": [],
        "stop": [], "stop_token_ids": [], "ignore_eos": False, "stream_interval": 1,
    }  # fmt: skip
    made = request(seed=1)
    others = {name: OPTIONS[name].default for name in made.options}  # of options to come
    assert made == StreamRequest(
        prompt=[5], options=others | asdict(NEUTRAL) | options, sinks=None, continues_text=False
    )


def test_stream_refuses_an_option_that_does_not_exist() -> None:
    says = r"^stream: there is no option `temprature`\. Did you mean `temperature`\?$"
    with pytest.raises(TypeError, match=says):
        request(temprature=1.0)
    with pytest.raises(TypeError, match=r"^stream: there is no option `beams`\.$"):
        request(beams=2)


@pytest.mark.parametrize(("name", "bounds"), INTEGERS.items())
def test_stream_takes_integers_at_their_bounds(name: str, bounds: Integer) -> None:
    for value in (bounds.low, bounds.high, np.uint64(bounds.high)):
        assert request(**{name: value}).options[name] == value


@pytest.mark.parametrize(("name", "bounds"), INTEGERS.items())
def test_stream_refuses_integers_beyond_their_bounds(name: str, bounds: Integer) -> None:
    for value in (bounds.low - 1, bounds.high + 1, -(2**31), 2**65, -(2**63) - 1):
        with pytest.raises(InvalidArgument, match=f"`{name}` must be in .* but is {value}") as info:
            request(**{name: value})
        assert info.value.param == name


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", [True, False, 1.0, math.nan, math.inf, "1", b"1", [1], object()])
def test_stream_refuses_what_is_not_an_integer(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"`{name}` must be an int"):
        request(**{name: value})


@pytest.mark.parametrize("name", NUMBERS)
def test_stream_takes_any_kind_of_number(name: str) -> None:
    for value in (1, 1.0, np.float32(1), np.int64(1)):
        given = request(**{name: value}).options[name]
        assert isinstance(given, float)
        assert given == 1


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [True, "1", b"1", [1.0], 1j, {}])
def test_stream_refuses_what_is_not_a_number(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"`{name}` must be a number"):
        request(**{name: value})


def test_stream_takes_one_stop_string_or_several_and_leaves_the_callers_list_alone() -> None:
    stops = ["a", "b"]
    made = request(stop=stops)
    assert made.options["stop"] == ["a", "b"]
    assert made.options["stop"] is not stops
    assert request(stop="ab").options["stop"] == ["ab"]
    assert request(stop=()).options["stop"] == []


@pytest.mark.parametrize("value", [5, None, b"a", [b"a"], [None], ["a", 5], {"a": 1}])
def test_stream_refuses_stops_that_are_not_strings(value: Any) -> None:
    with pytest.raises(TypeError, match="`stop` must"):
        request(stop=value)


def test_stream_refuses_lone_surrogates_in_a_stop_string() -> None:
    with pytest.raises(InvalidArgument, match=r"lone surrogate U\+D\w+ at position 2"):
        request(stop=["fine", "ab\ud800"])


@pytest.mark.parametrize("value", [[-1], [VOCAB], [2**31], [2**63]])
def test_stream_refuses_stop_tokens_outside_the_vocabulary(value: list[int]) -> None:
    sentence = (
        f"stream: item 1 of `stop_token_ids` must be a token id in [0, 300), but is {value[0]}."
    )
    with pytest.raises(InvalidArgument, match=rf"^{re.escape(sentence)}$") as raised:
        request(stop_token_ids=[7, *value])
    assert raised.value.param == "stop_token_ids"


@pytest.mark.parametrize("value", [5, None, "5", [1.0], [True], {5: 1}])
def test_stream_refuses_stop_tokens_that_are_not_ids(value: Any) -> None:
    item = (
        r"(item 0 of )?`stop_token_ids` must be (token ids|a token id, an integer), but is of type"
    )
    with pytest.raises(TypeError, match=f"^stream: {item} "):
        request(stop_token_ids=value)


def test_stream_takes_a_logit_bias_by_id() -> None:
    made = request(logit_bias={3: -math.inf, np.int32(4): 2})
    assert made.options["logit_bias"] == {3: -math.inf, 4: 2.0}


def test_stream_refuses_a_wrong_logit_bias() -> None:
    with pytest.raises(TypeError, match="`logit_bias` must map"):
        request(logit_bias=[(3, 1.0)])
    with pytest.raises(TypeError, match="`logit_bias` must be a number"):
        request(logit_bias={3: "1"})
    for key in ("3", None, 3.0, True):
        kind = type(key).__name__
        sentence = f"a key of `logit_bias` must be a token id, an integer, but is of type {kind}."
        with pytest.raises(TypeError, match=f"^stream: {sentence}$"):
            request(logit_bias={key: 1})
    sentence = "a key of `logit_bias` must be a token id in [0, 300), but is 300."
    with pytest.raises(InvalidArgument, match=rf"^stream: {re.escape(sentence)}$") as raised:
        request(logit_bias={VOCAB: 1})
    assert raised.value.param == "logit_bias"


@pytest.mark.parametrize("sinks", [True, "4", 1.5])
def test_stream_refuses_sinks_that_are_not_an_integer(sinks: Any) -> None:
    with pytest.raises(TypeError, match="stream: `sinks` must be an int"):
        make_request([5], {}, defaults=NEUTRAL, vocab_size=VOCAB, sinks=sinks)


@pytest.mark.parametrize("value", [0, 1, None, "yes"])
def test_stream_refuses_flags_that_are_not_bools(value: Any) -> None:
    with pytest.raises(TypeError, match="`ignore_eos` must be a bool"):
        request(ignore_eos=value)


def test_stream_draws_a_seed_where_none_is_given() -> None:
    seeds = {request().seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_stream_takes_given_values_before_defaults() -> None:
    defaults = Sampling(temperature=0.6, top_k=20)
    made = request(defaults=defaults, top_k=0)
    assert made.sampling == Sampling(temperature=0.6, top_k=0)


def test_sampling_defaults_are_the_checkpoints_own() -> None:
    assert Sampling.from_checkpoint({"temperature": 0.6, "top_k": 20}) == Sampling(
        temperature=0.6, top_k=20
    )


def test_sampling_defaults_fill_in_where_the_checkpoint_does_not_choose() -> None:
    assert Sampling.from_checkpoint({"repetition_penalty": 1.1}) == Sampling(
        temperature=0.7, top_p=0.95, min_p=0.05, repetition_penalty=1.1
    )


def test_sampling_defaults_are_greedy_where_the_checkpoint_is() -> None:
    assert Sampling.from_checkpoint({"temperature": 0.0}) == Sampling(temperature=0.0)
