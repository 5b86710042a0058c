"""The table of ranges: what the native side refuses, and what the documentation says."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import sinkstream
from sinkstream.errors import InvalidArgument
from sinkstream.request.options import Sampling, StreamRequest
from sinkstream.request.ranges import NUMBERS, WHOLE, Range

REQUEST = StreamRequest(
    prompt=[5], sampling=Sampling(), seed=1, logit_bias={}, logprobs=0, max_tokens=1, stop=[],
    stop_token_ids=[], ignore_eos=False, stream_interval=1, sinks=None,
)  # fmt: skip


@pytest.fixture(scope="module")
def model(tiny_folder: Callable[[str], Path]) -> Iterator[sinkstream.Model]:
    with sinkstream.load(tiny_folder("qwen3"), sinks=4, window=60, threads=1) as loaded:
        yield loaded


def submit(model: sinkstream.Model, name: str, value: float) -> None:
    """Hand one value to the native side, past all checks of Python's, and end the stream."""
    in_sampling = name in Sampling.__dataclass_fields__
    model._native.submit(
        replace(REQUEST, sampling=replace(REQUEST.sampling, **{name: value}))
        if in_sampling
        else replace(REQUEST, **{name: value})
    ).close()


@pytest.mark.parametrize("name", NUMBERS)
def test_the_native_side_takes_exactly_the_numbers_of_the_table(
    model: sinkstream.Model, name: str
) -> None:
    allowed = NUMBERS[name]
    lowest = math.nextafter(allowed.low, math.inf) if allowed.is_open else allowed.low
    for value in (lowest, allowed.high):
        assert value in allowed
        submit(model, name, value)
    for value in (math.nextafter(lowest, -math.inf), math.nextafter(allowed.high, math.inf)):
        assert value not in allowed
        sentence = f"`{name}` must be in {allowed}, but is"
        with pytest.raises(InvalidArgument, match=re.escape(sentence)):
            submit(model, name, value)


@pytest.mark.parametrize("name", [name for name in WHOLE if name != "seed"])
def test_the_native_side_takes_exactly_the_whole_numbers_of_the_table(
    model: sinkstream.Model, name: str
) -> None:
    low, high = WHOLE[name]
    for value in (low, high):
        submit(model, name, value)
    for value in (low - 1, high + 1):
        with pytest.raises(
            InvalidArgument, match=rf"`{name}` must be in \[{low}, {high}\], but is"
        ):
            submit(model, name, value)


def test_the_native_side_takes_every_seed_of_64_bits(model: sinkstream.Model) -> None:
    for value in WHOLE["seed"]:
        submit(model, "seed", value)
    for value in (WHOLE["seed"][0] - 1, WHOLE["seed"][1] + 1):
        with pytest.raises((RuntimeError, TypeError)):  # it has no such number
            submit(model, "seed", value)


def test_a_range_without_its_lower_end_is_written_so() -> None:
    assert [str(Range(0, 1, is_open=True)), str(Range(0.01, 100))] == ["(0, 1]", "[0.01, 100]"]
    assert math.nan not in Range(0, 1)


def described(text: str, name: str) -> str:
    """Return what `text` says behind `name`, up to the next name, on one line."""
    (found,) = re.findall(rf"^ *{name}: (.*?)(?=^ *\w+: |\Z)", text, re.MULTILINE | re.DOTALL)
    return " ".join(found.split())


@pytest.mark.parametrize("name", NUMBERS)
def test_the_documentation_says_the_ranges_of_the_table(name: str) -> None:
    assert str(NUMBERS[name]) in described(inspect.getsource(Sampling), name)
    assert str(NUMBERS[name]) in described(inspect.getdoc(sinkstream.Model.stream) or "", name)
