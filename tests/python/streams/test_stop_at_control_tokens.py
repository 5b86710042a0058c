"""A stop string that is the text of a control token, which a stream never shows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sinkstream

START, STARTED = "<|im_start|>", 1
PROMPT = list(range(3, 20))


@pytest.fixture
def model(tiny_folder: Callable[[str], Path]) -> Iterator[sinkstream.Model]:
    """Give a tiny model whose next token is whatever the bias of a request says."""
    with sinkstream.load(tiny_folder("llama"), threads=1) as model:
        yield model


def forced(token: int) -> dict[int, float]:
    return {token: 1000.0}


@pytest.mark.parametrize("stop", [START, [START], ["never", START, "again"]])
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_a_stream_stops_at_the_token(
    model: sinkstream.Model, stop: str | list[str], ignore_eos: bool
) -> None:
    result = model.generate(
        PROMPT, stop=stop, logit_bias=forced(STARTED), max_tokens=20, ignore_eos=ignore_eos
    )
    assert (result.token_ids, result.text, result.finish_reason) == ([STARTED], "", "stop")


def test_an_ignored_end_token_stops_if_its_text_is_a_stop_string(model: sinkstream.Model) -> None:
    (end,) = model.end_token_ids
    options = {"logit_bias": forced(end), "max_tokens": 5, "ignore_eos": True}
    assert model.generate(PROMPT, **options).finish_reason == "length"  # type: ignore[arg-type]
    result = model.generate(PROMPT, stop="<|im_end|>", **options)  # type: ignore[arg-type]
    assert (result.token_ids, result.finish_reason) == ([end], "stop")


def test_a_session_stops_at_the_token(model: sinkstream.Model) -> None:
    with model.session() as session:
        stream = session.stream("the", stop=START, logit_bias=forced(STARTED), max_tokens=20)
        assert stream.result().finish_reason == "stop"
        assert stream.result().token_ids == [STARTED]


def test_the_same_letters_stop_too(model: sinkstream.Model) -> None:
    assert model.tokenizer is not None
    letter = model.tokenizer.token_to_id("<")
    result = model.generate(PROMPT, stop=["<<", START], logit_bias=forced(letter), max_tokens=9)
    assert (result.text, result.finish_reason) == ("", "stop_string")


@pytest.mark.parametrize("stop", [START + "\n", "x" + START])
def test_a_stop_string_around_a_control_token_causes_a_warning(
    model: sinkstream.Model, stop: str
) -> None:
    with pytest.warns(UserWarning, match="`stop` has") as caught:
        model.generate(PROMPT, stop=["end", stop], max_tokens=1)
    assert [str(warning.message) for warning in caught] == [
        f"stream: `stop` has {stop!r}, but a stream never shows '<|im_start|>', a control token. "
        "To stop at the token, pass its text alone."
    ]


def test_other_stop_strings_cause_no_warning(model: sinkstream.Model) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.generate(PROMPT, stop=["end", START, "<|"], max_tokens=1)
