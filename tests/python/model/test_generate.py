"""`Model.generate`: one prompt or several, the same results as `stream`, and always an end."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sinkstream
from sinkstream import CapacityError, InvalidArgument, SinkstreamError
from tests.python.waiting import wait_until

OPTIONS: dict[str, Any] = {"temperature": 1.0, "seed": 3, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tiny_folder: Callable[[str], Path]) -> Iterator[sinkstream.Model]:
    with sinkstream.load(tiny_folder("llama"), sinks=4, window=60, threads=1) as loaded:
        yield loaded


def ids_of(model: sinkstream.Model, prompt: Any) -> list[int]:
    return model.stream(prompt, max_tokens=5, **OPTIONS).result().token_ids


@pytest.mark.parametrize(
    "prompt", ["hello", [5, 9, 17], (5, 9), range(5, 9), np.array([5, 9]), torch.tensor([5, 9])]
)
def test_one_prompt_gives_one_result(model: sinkstream.Model, prompt: Any) -> None:
    result = model.generate(prompt, max_tokens=5, **OPTIONS)
    assert result.token_ids == ids_of(model, prompt)


@pytest.mark.parametrize(
    "prompts",
    [
        ["hello", "sea"],
        ("hello",),
        [[5, 9, 17], [6]],
        [(5, 9), [6], range(3)],
        [np.array([5, 9]), np.array([6, 7, 8])],
        [torch.tensor([5]), torch.tensor([6])],
        [[5], torch.tensor([6]), "sea"],
        np.array([[5, 9], [6, 7]]),
        torch.tensor([[5], [6]]),
    ],
    ids=repr,
)
def test_several_prompts_give_their_results_in_order(model: sinkstream.Model, prompts: Any) -> None:
    results = model.generate(prompts, max_tokens=5, **OPTIONS)
    assert [result.token_ids for result in results] == [ids_of(model, one) for one in prompts]
    assert [result.stats.prompt_tokens for result in results] == [
        model.stream(one, max_tokens=0).result().stats.prompt_tokens for one in prompts
    ]


@pytest.mark.parametrize("nothing", [[], (), np.zeros((0, 3), np.int64)], ids=repr)
def test_no_prompts_give_no_results(model: sinkstream.Model, nothing: Any) -> None:
    assert model.generate(nothing) == []


def test_an_empty_row_of_ids_is_refused(model: sinkstream.Model) -> None:
    for empty in (np.zeros(0, np.int64), [[5], []], [torch.zeros(0, dtype=torch.long)]):
        with pytest.raises(sinkstream.InvalidArgument, match="`prompt` must not be empty"):
            model.generate(empty, max_tokens=1)


def test_a_table_of_more_than_two_dimensions_is_refused(model: sinkstream.Model) -> None:
    with pytest.raises(sinkstream.InvalidArgument, match=r"but has shape \[1, 2, 3\]"):
        model.generate(torch.zeros(1, 2, 3, dtype=torch.long), max_tokens=1)


@pytest.mark.parametrize(
    ("prompts", "kind", "says"),
    [
        (["a", ""], InvalidArgument, "^generate: prompt 1: `prompt` must not be empty"),
        (
            [[5], [6], ["x"]],
            TypeError,
            "^generate: prompt 2: item 0 of `prompt` must be",
        ),
        (
            [[5], [10**6]],
            InvalidArgument,
            "^generate: prompt 1: item 0 of `prompt` must be",
        ),
        (["the", object()], TypeError, "^generate: prompt 1: `prompt` must be a string"),
    ],
)
def test_one_wrong_prompt_of_several_is_named_and_nothing_is_started(
    model: sinkstream.Model, prompts: Any, kind: type[Exception], says: str
) -> None:
    before = model.stats()["requests"]
    with pytest.raises(kind, match=says) as caught:
        model.generate(prompts, max_tokens=None, **OPTIONS)
    if isinstance(caught.value, SinkstreamError):
        assert caught.value.prompt_index == len(prompts) - 1
        assert caught.value.results == ()
    assert model.generate([5], max_tokens=2, **OPTIONS).finish_reason == "length"
    assert model.stats()["requests"] == before + 1


def test_a_wrong_option_is_the_fault_of_no_prompt(model: sinkstream.Model) -> None:
    for options in ({"temperature": 101}, {"sinks": 64}, {"max_tokens": -1}):
        with pytest.raises(InvalidArgument, match=r"^stream: ") as caught:
            model.generate([[5], [6]], **options)  # type: ignore[call-overload]
        assert caught.value.prompt_index is None


def test_a_reply_that_fails_leaves_the_others(tiny_folder: Callable[[str], Path]) -> None:
    with (
        sinkstream.load(
            tiny_folder("llama"), sinks=4, window=252, threads=1, max_sequences=2
        ) as small,
        small.session(),
        small.stream([6] * 100, max_tokens=60, logprobs=20, ignore_eos=True) as unread,
    ):
        wait_until(lambda: small.stats()["parked"] == 1)
        short, long = [5], [6] * 250  # the free pages suffice for a short one
        with pytest.raises(CapacityError, match=r"^generate: prompt 1: timed out") as caught:
            small.generate([short, long], max_tokens=2, ignore_eos=True)
        assert unread.finish_reason is None
    done, failed = caught.value.results
    assert failed is caught.value
    assert len(done.token_ids) == 2


def test_a_misspelt_option_is_refused_with_a_suggestion(model: sinkstream.Model) -> None:
    calls: list[Callable[..., Any]] = [model.stream, model.generate, model.generate_many]
    for call, prompt in zip(calls, ["the", ["the"], ["the"]], strict=True):
        with pytest.raises(TypeError, match=r"no option `temprature`.* mean `temperature`\?"):
            call(prompt, temprature=1)


def test_the_signature_shows_the_options_and_their_defaults() -> None:
    for function, expected in ((sinkstream.Model.generate, 256), (sinkstream.Model.stream, None)):
        shown = inspect.signature(function).parameters
        assert shown["max_tokens"].default == expected
        assert shown["top_p"].kind is inspect.Parameter.KEYWORD_ONLY
        assert "options" not in shown
        assert "top_p: Keeps" in (function.__doc__ or "")


def test_a_reply_ends_after_256_tokens_by_default(model: sinkstream.Model) -> None:
    alone = model.generate([5, 9], **OPTIONS)
    assert (len(alone.token_ids), alone.finish_reason) == (256, "length")
    together = model.generate([[5, 9], [6]], **OPTIONS)
    assert [len(result.token_ids) for result in together] == [256, 256]


def test_none_waits_until_the_model_ends(model: sinkstream.Model) -> None:
    # A token from about the 300th on is made the end, which is past the default.
    free = model.generate([5, 9], max_tokens=400, **OPTIONS).token_ids
    index = next(i for i in range(300, 400) if free[i] not in free[:i])
    ended = model.generate([5, 9], max_tokens=None, stop_token_ids=[free[index]], **OPTIONS)
    assert ended.finish_reason == "stop"
    assert ended.stats.generated_tokens > 256
    assert ended.token_ids[:index] == free[:index]
