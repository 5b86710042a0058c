"""The table of options: its ranges are those of the native side and of the documentation."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import sinkstream
from sinkstream import _core
from sinkstream.errors import InvalidArgument
from sinkstream.request.options import GRAMMARS, OPTIONS, SAMPLING, Sampling
from sinkstream.request.stream_request import make_request
from sinkstream.request.value_kinds import Number
from tests.python.request.ranges import INTEGERS, NUMBERS

REQUEST = make_request([5], {"max_tokens": 1}, defaults=Sampling(), vocab_size=300)


@pytest.fixture(scope="module")
def model(tiny_folder: Callable[[str], Path]) -> Iterator[sinkstream.Model]:
    with sinkstream.load(tiny_folder("qwen3"), sinks=4, window=60, threads=1) as loaded:
        yield loaded


def submit(model: sinkstream.Model, name: str, value: float) -> None:
    """Pass one value to the native side, bypassing all Python checks, and end the stream."""
    model._native.submit(replace(REQUEST, options={**REQUEST.options, name: value})).close()


def test_the_native_side_reads_exactly_the_options_of_the_table() -> None:
    assert sorted([*_core.request_options(), *GRAMMARS]) == sorted(OPTIONS)
    assert set(SAMPLING) <= set(OPTIONS)


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


@pytest.mark.parametrize("name", [name for name in INTEGERS if name != "seed"])
def test_the_native_side_takes_exactly_the_integers_of_the_table(
    model: sinkstream.Model, name: str
) -> None:
    low, high = INTEGERS[name].low, INTEGERS[name].high
    for value in (low, high):
        submit(model, name, value)
    for value in (low - 1, high + 1):
        with pytest.raises(
            InvalidArgument, match=rf"`{name}` must be in \[{low}, {high}\], but is"
        ):
            submit(model, name, value)


def test_the_native_side_takes_every_seed_of_64_bits(model: sinkstream.Model) -> None:
    seed = INTEGERS["seed"]
    for value in (seed.low, seed.high):
        submit(model, "seed", value)
    for value in (seed.low - 1, seed.high + 1):
        with pytest.raises((RuntimeError, TypeError)):  # its types do not hold it
            submit(model, "seed", value)


def test_a_range_without_its_lower_end_is_written_so() -> None:
    assert [str(Number(0, 1, is_open=True)), str(Number(0.01, 100))] == ["(0, 1]", "[0.01, 100]"]
    assert math.nan not in Number(0, 1)


def described(text: str, name: str) -> str:
    """Return what `text` says after `name`, up to the next name, on one line."""
    (found,) = re.findall(rf"^ *{name}: (.*?)(?=^ *\w+: |^$|\Z)", text, re.MULTILINE | re.DOTALL)
    return " ".join(found.split())


@pytest.mark.parametrize("method", [sinkstream.Model.stream, sinkstream.Session.stream])
def test_signature_and_documentation_list_every_option(method: Callable[..., object]) -> None:
    parameters = inspect.signature(method).parameters
    text = inspect.getdoc(method) or ""
    assert "options" not in parameters
    for name, option in OPTIONS.items():
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default == option.default
        assert described(text, name) == f"{option.doc} {option.kind.rule}".rstrip()
    for name, allowed in NUMBERS.items():
        assert str(allowed) in described(text, name)


def test_sampling_defaults_are_neutral_and_in_range() -> None:
    for name, value in asdict(Sampling()).items():
        assert value in (NUMBERS[name] if name in NUMBERS else INTEGERS[name])
