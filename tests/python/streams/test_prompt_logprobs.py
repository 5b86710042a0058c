"""Every token of a prompt is scored as the model's own forward pass scores it, in any company."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sinkstream
from sinkstream import Evicted, Prefill, PromptToken, Started, Token
from sinkstream.evaluate import perplexity

CAPACITY = 64


@pytest.fixture(scope="module")
def folder(tiny_folder: Callable[[str], Path]) -> Path:
    return tiny_folder("llama")


def loaded(folder: Path, **options: Any) -> sinkstream.Model:
    given = {"sinks": 4, "window": CAPACITY - 4, "threads": 1, "max_sequences": 4, **options}
    return sinkstream.load(folder, **given)


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[sinkstream.Model]:
    with loaded(folder) as opened:
        yield opened


def prompt_of(model: sinkstream.Model, length: int, seed: int = 0) -> list[int]:
    drawn = random.Random(seed)
    return [drawn.randrange(model.spec.vocab_size) for _ in range(length)]


def scored(model: sinkstream.Model, prompt: list[int], **options: Any) -> list[PromptToken]:
    given = {"max_tokens": 0, "temperature": 0, "prompt_logprobs": 3, **options}
    return model.generate(prompt, **given).prompt_logprobs


@pytest.mark.parametrize("length", [2, CAPACITY, 10 * CAPACITY + 5])
def test_scores_are_those_of_the_forward_pass(model: sinkstream.Model, length: int) -> None:
    prompt = prompt_of(model, length)
    logits = model.forward(torch.tensor([prompt]), model.new_cache())[0, :-1].double()
    expected = torch.log_softmax(logits, dim=-1)
    tokens = scored(model, prompt)
    assert [token.id for token in tokens] == prompt
    assert tokens[0] == PromptToken(prompt[0], None)
    following = torch.tensor(prompt[1:])[:, None]
    found = torch.tensor([token.logprob for token in tokens[1:]], dtype=torch.float64)
    assert torch.allclose(found, expected.gather(1, following)[:, 0], rtol=0, atol=2e-6)
    best = torch.topk(expected, 3)
    for i, token in enumerate(tokens[1:]):
        assert [other for other, _ in token.alternatives] == best.indices[i].tolist()
        probable = [logprob for _, logprob in token.alternatives]
        assert probable == pytest.approx(best.values[i].tolist(), abs=2e-6)


def test_a_reply_scored_as_a_prompt_has_the_bits_that_it_was_generated_with(
    model: sinkstream.Model,
) -> None:
    prompt = prompt_of(model, 100)
    options: dict[str, Any] = {"seed": 3, "temperature": 1.5, "ignore_eos": True, "max_tokens": 200}
    reply = model.generate(prompt, logprobs=3, **options)
    tokens = scored(model, prompt + reply.token_ids)[len(prompt) :]
    assert [token.logprob for token in tokens] == reply.logprobs
    assert [token.alternatives for token in tokens] == reply.alternatives


def test_scores_add_up_to_the_perplexity(model: sinkstream.Model) -> None:
    prompt = prompt_of(model, 300)
    nll = perplexity(model, prompt).nll
    found = [token.logprob for token in scored(model, prompt, prompt_logprobs=0)[1:]]
    assert np.allclose(-nll, np.array(found, dtype=np.float32), rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    "options", [{"prefill_chunk": 1}, {"prefill_chunk": 7}, {"threads": 2}, {"max_sequences": 1}]
)
def test_scores_do_not_depend_on_chunks_or_threads(
    folder: Path, model: sinkstream.Model, options: dict[str, Any]
) -> None:
    prompt = prompt_of(model, 250)
    with loaded(folder, **options) as other:
        assert scored(other, prompt) == scored(model, prompt)


def test_scores_do_not_depend_on_other_streams(model: sinkstream.Model) -> None:
    prompts = [prompt_of(model, length, seed=length) for length in (90, 201, 40)]
    alone = [scored(model, prompt) for prompt in prompts]
    with model.stream(prompt_of(model, 9), ignore_eos=True, seed=1) as endless:
        next(endless)
        streams = [
            model.stream(prompt, max_tokens=0, prompt_logprobs=3, seed=1) for prompt in prompts
        ]
        together = [stream.result().prompt_logprobs for stream in streams]
    assert together == alone


def test_a_reply_is_the_same_whether_its_prompt_is_scored(model: sinkstream.Model) -> None:
    options: dict[str, Any] = {"seed": 5, "max_tokens": 90, "repetition_penalty": 1.3}
    prompt = prompt_of(model, 130)
    plain = model.generate(prompt, **options)
    with_scores = model.generate(prompt, prompt_logprobs=0, **options)
    assert with_scores.token_ids == plain.token_ids
    assert with_scores.logprobs == plain.logprobs
    assert plain.prompt_logprobs == []


def test_a_prompt_that_begins_like_a_session_is_scored_whole(model: sinkstream.Model) -> None:
    prompt = prompt_of(model, 50)
    alone = scored(model, prompt)
    with model.session() as session:
        session.append(prompt)
        assert model.generate(prompt, max_tokens=1, seed=1).stats.cached_tokens > 0
        reply = model.generate(prompt, max_tokens=1, seed=1, prompt_logprobs=3)
    assert reply.stats.cached_tokens == 0
    assert reply.prompt_logprobs == alone


def test_events_have_the_prompts_tokens_in_order(model: sinkstream.Model) -> None:
    prompt = prompt_of(model, 100)
    stream = model.stream(prompt, max_tokens=4, seed=1, ignore_eos=True, prompt_logprobs=1)
    events = list(stream.events())
    tokens = [event for event in events if isinstance(event, PromptToken)]
    assert tokens == stream.result().prompt_logprobs
    assert [token.id for token in tokens] == prompt
    kinds = [type(event) for event in events if not isinstance(event, (Evicted, Prefill))]
    assert kinds[:101] == [Started, *[PromptToken] * 100]
    assert PromptToken not in kinds[101:]
    assert kinds.count(Token) == 4


def test_a_reader_of_text_gets_the_scores_as_well(model: sinkstream.Model) -> None:
    prompt = prompt_of(model, 20)
    stream = model.stream(prompt, max_tokens=9, seed=1, prompt_logprobs=2)
    for _ in stream:
        pass
    assert stream.result().prompt_logprobs == scored(model, prompt, prompt_logprobs=2)


def test_one_token_has_no_score(model: sinkstream.Model) -> None:
    assert scored(model, [7]) == [PromptToken(7, None)]


@pytest.mark.parametrize("value", [-1, 21])
def test_a_number_out_of_range_is_refused(model: sinkstream.Model, value: int) -> None:
    sentence = rf"`prompt_logprobs` must be in \[0, 20\], but is {value}"
    with pytest.raises(sinkstream.InvalidArgument, match=sentence) as caught:
        model.stream([1, 2], prompt_logprobs=value)
    assert caught.value.param == "prompt_logprobs"


def test_a_session_refuses_to_score(model: sinkstream.Model) -> None:
    with (
        model.session() as session,
        pytest.raises(
            sinkstream.InvalidArgument,
            match=r"`prompt_logprobs` must be None in a session, but is 2\. A session does not "
            r"process its earlier tokens again\. Use `Model\.stream`\.",
        ),
    ):
        session.stream([1, 2], prompt_logprobs=2, seed=1)
