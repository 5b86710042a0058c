"""Text, events and results of a stream agree, whichever way they are read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import sinkstream
from sinkstream import Evicted, Finished, Prefill, Started, Stream, Token

PROMPT = [5, 9, 17, 33, 65, 129, 200]
CAPACITY = 64


@pytest.fixture(scope="module")
def model(tiny_folder: Callable[[str], Path]) -> Iterator[sinkstream.Model]:
    with sinkstream.load(tiny_folder("llama"), sinks=4, window=CAPACITY - 4, threads=1) as loaded:
        yield loaded


def stream(model: sinkstream.Model, **options: Any) -> Stream:
    given = {"max_tokens": 150, "temperature": 1.0, "seed": 7, "ignore_eos": True, **options}
    return model.stream(PROMPT, **given)


def decode(model: sinkstream.Model, ids: list[int]) -> str:
    assert model.tokenizer is not None
    return model.tokenizer.decode(ids, skip_special_tokens=True)


def test_stream_joins_to_the_decoded_ids(model: sinkstream.Model) -> None:
    for seed in range(20):
        running = stream(model, seed=seed, temperature=3.0)
        text = "".join(running)
        result = running.result()
        assert text == result.text == decode(model, result.token_ids)
        assert len(result.token_ids) == 150


def test_stream_never_yields_empty_text(model: sinkstream.Model) -> None:
    assert all(stream(model, temperature=3.0))


def test_stream_of_the_same_seed_is_the_same(model: sinkstream.Model) -> None:
    first, second = (stream(model).result() for _ in range(2))
    assert (first.token_ids, first.logprobs) == (second.token_ids, second.logprobs)
    assert stream(model, seed=8).result().token_ids != first.token_ids


def test_stream_events_tell_everything_in_order(model: sinkstream.Model) -> None:
    running = stream(model)
    events = list(running.events())
    started = events[0]
    assert isinstance(started, Started)
    assert (started.prompt_tokens, started.seed) == (len(PROMPT), 7)
    assert started.sampling.temperature == 1.0
    assert Prefill(len(PROMPT), len(PROMPT)) in events
    assert events[-1] == Finished("length", "")
    tokens = [event for event in events if isinstance(event, Token)]
    result = running.result()
    assert [token.id for token in tokens] == result.token_ids
    assert "".join(token.text for token in tokens) == result.text
    assert [token.logprob for token in tokens] == result.logprobs
    # The last token is never fed, so the cache holds one token less.
    evicted = len(PROMPT) + 149 - CAPACITY
    assert sum(event.count for event in events if isinstance(event, Evicted)) == evicted
    assert result.stats.evicted_tokens == evicted


def test_stream_text_and_events_can_be_read_alternately(model: sinkstream.Model) -> None:
    running = stream(model)
    pieces = [next(running)]
    for event in running.events():
        if isinstance(event, Token):
            pieces.append(event.text)
            if len(pieces) > 20:
                break
    pieces.extend(running)
    assert "".join(pieces) == running.result().text


def test_stream_reports_alternatives_where_asked(model: sinkstream.Model) -> None:
    tokens = [e for e in stream(model, logprobs=4).events() if isinstance(e, Token)]
    assert all(len(token.alternatives) == 4 for token in tokens)
    for token in tokens:
        logprobs = [logprob for _, logprob in token.alternatives]
        assert logprobs == sorted(logprobs, reverse=True)
        assert token.logprob <= logprobs[0]
    assert all(t.alternatives == () for t in stream(model).events() if isinstance(t, Token))


@pytest.mark.parametrize("max_tokens", [40, None])
def test_a_result_has_the_alternatives_of_its_tokens(
    model: sinkstream.Model, max_tokens: int | None
) -> None:
    running = model.stream(
        PROMPT, logprobs=3, max_tokens=max_tokens, temperature=1.0, ignore_eos=True, seed=1
    )
    tokens = []
    for event in running.events():
        if isinstance(event, Token):
            tokens.append(event)
            if len(tokens) == 5_000:  # more than the end that is kept of an endless reply
                running.cancel()
    result = running.result()
    assert len(result.alternatives) == len(result.token_ids) == (max_tokens or 4096)
    assert result.alternatives == [token.alternatives for token in tokens[-4096:]]
    assert model.generate(PROMPT, max_tokens=3).alternatives == []


def test_the_alternatives_are_the_log_softmax_of_the_logits(model: sinkstream.Model) -> None:
    result = model.generate(PROMPT, logprobs=5, max_tokens=6, temperature=0, ignore_eos=True)
    ids = [*PROMPT, *result.token_ids]
    logits = model.forward(torch.tensor([ids]))[0, len(PROMPT) - 1 : -1]
    best = torch.log_softmax(logits.double(), -1).topk(5)
    for i, own in enumerate(result.alternatives):
        assert [token for token, _ in own] == best.indices[i].tolist()
        assert [logprob for _, logprob in own] == pytest.approx(best.values[i].tolist(), abs=1e-4)


def test_stream_with_an_interval_gives_the_same_text_in_larger_pieces(
    model: sinkstream.Model,
) -> None:
    whole = "".join(stream(model))
    pieces = list(stream(model, stream_interval=50))
    assert "".join(pieces) == whole
    assert len(pieces) <= 3


def test_stream_ends_before_a_stop_string(model: sinkstream.Model) -> None:
    whole = stream(model).result().text
    stop = whole[40:46]
    running = stream(model, stop=["never to be found", stop])
    assert "".join(running) == whole[: whole.find(stop)]
    assert running.finish_reason == "stop_string"


def test_stream_ends_at_a_stop_token_and_shows_no_text_of_it(model: sinkstream.Model) -> None:
    ids = stream(model).result().token_ids
    at = next(i for i in range(20, 150) if ids.index(ids[i]) == i)
    result = stream(model, stop_token_ids=[ids[at]]).result()
    assert result.token_ids == ids[: at + 1]
    assert result.text == decode(model, ids[:at])
    assert result.finish_reason == "stop"


def test_stream_of_no_tokens_ends_on_length(model: sinkstream.Model) -> None:
    running = stream(model, max_tokens=0)
    assert list(running) == []
    result = running.result()
    assert (result.text, result.token_ids, result.finish_reason) == ("", [], "length")
    assert result.stats.prompt_tokens == len(PROMPT)
    assert result.stats.time_to_first_token_s is None


def test_stream_stats_are_complete_at_the_end(model: sinkstream.Model) -> None:
    called_at = time.monotonic()
    stats = stream(model, speculation=0).result().stats  # each token has a step, and a time
    elapsed_s = time.monotonic() - called_at
    assert stats.prompt_tokens == len(PROMPT)
    assert stats.generated_tokens == 150
    assert stats.cached_tokens == 0
    assert stats.live_tokens == CAPACITY
    assert 0 < stats.cache_bytes <= model.capacity.bytes_per_sequence
    assert stats.consumer_lag == 0
    assert stats.time_to_first_token_s is not None
    assert stats.time_to_first_token_s > 0
    assert stats.token_p50_s is not None
    assert stats.token_p99_s is not None
    assert 0 < stats.token_p50_s <= stats.token_p99_s
    # At any speed: 149 gaps follow the first token, half of them are at least the median (to 3 %).
    assert stats.tokens_per_s is not None
    decode_s = 149 / stats.tokens_per_s
    assert decode_s >= 75 * stats.token_p50_s * 0.97
    assert stats.time_to_first_token_s + decode_s <= elapsed_s


def test_stream_has_no_finish_reason_before_its_end_was_read(model: sinkstream.Model) -> None:
    running = stream(model)
    assert running.finish_reason is None
    next(running)
    assert running.finish_reason is None
    list(running)
    assert running.finish_reason == "length"


def test_stream_stays_ended(model: sinkstream.Model) -> None:
    running = stream(model, max_tokens=3)
    list(running)
    assert list(running) == []
    assert list(running.events()) == []
    assert running.result().finish_reason == "length"


def test_stream_tells_its_state_when_printed(model: sinkstream.Model) -> None:
    running = stream(model, max_tokens=3)
    list(running)
    assert repr(running) == "<sinkstream.Stream length, 3 tokens>"


def test_stream_without_end_keeps_a_bounded_tail_and_counts_the_rest(
    model: sinkstream.Model,
) -> None:
    running = stream(model, max_tokens=None)
    characters = 0
    for text in running:
        characters += len(text)
        if running.stats.generated_tokens > 9_000:
            running.cancel()
    result = running.result()
    assert len(result.token_ids) == len(result.logprobs) == 4096
    assert result.dropped_tokens == result.stats.generated_tokens - 4096
    assert len(result.text) + result.dropped_characters == characters


def test_stream_that_is_not_read_waits_and_loses_nothing(model: sinkstream.Model) -> None:
    whole = stream(model, max_tokens=5000).result()
    lagging = stream(model, max_tokens=5000)
    deadline = time.monotonic() + 20
    while model.stats()["parked"] == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert lagging.stats.generated_tokens < 4500
    assert lagging.stats.consumer_lag == lagging.stats.generated_tokens
    assert stream(model).result().token_ids == whole.token_ids[:150], "a neighbour goes on"
    assert lagging.result().token_ids == whole.token_ids


def test_stream_of_a_checkpoint_without_a_tokenizer_gives_ids_and_refuses_text(
    tiny_folder: Callable[[str], Path],
) -> None:
    folder = tiny_folder("llama-one-layer")
    with sinkstream.load(folder, sinks=4, window=60, threads=1) as mute:
        running = mute.stream(PROMPT, max_tokens=9)
        with pytest.raises(sinkstream.InvalidArgument, match="must have a tokenizer"):
            next(running)
        tokens = [event.id for event in running.events() if isinstance(event, Token)]
        result = running.result()
        assert result.token_ids == tokens
        assert (len(tokens), result.text) == (9, "")
        with pytest.raises(sinkstream.InvalidArgument, match="`stop` must be empty"):
            mute.stream(PROMPT, stop="end")


def test_stream_with_its_own_sinks_keeps_the_capacity(model: sinkstream.Model) -> None:
    assert stream(model, sinks=20).result().stats.live_tokens == CAPACITY
    for sinks in (-1, 64, 1 << 60):
        with pytest.raises(sinkstream.InvalidArgument, match=r"`sinks` must be in \[0, 63\]"):
            stream(model, sinks=sinks)


RANGES = [
    ("temperature", (0, 100), (-0.001, 100.001)),
    ("top_p", (1e-9, 1), (0, 1.0001, -1)),
    ("min_p", (0, 1), (-0.001, 1.001)),
    ("repetition_penalty", (0.01, 100), (0, 0.009, 101, -1)),
    ("presence_penalty", (-100, 100), (-100.1, 100.1)),
    ("frequency_penalty", (-100, 100), (-100.1, 100.1)),
]


@pytest.mark.parametrize(("name", "good", "bad"), RANGES)
def test_stream_checks_the_range_of_every_number(
    model: sinkstream.Model, name: str, good: tuple[float, ...], bad: tuple[float, ...]
) -> None:
    for value in good:
        assert len(stream(model, max_tokens=3, **{name: value}).result().token_ids) == 3
    for value in (*bad, float("nan"), float("inf"), -float("inf"), 2**31, 2**63, 10**400):
        with pytest.raises(sinkstream.InvalidArgument, match=f"`{name}` must be in") as info:
            stream(model, **{name: value})
        assert info.value.param == name
        assert info.value.code == "invalid_argument"


@pytest.mark.parametrize("options", [{"stop": ""}, {"stop": ["a", ""]}, {"stop": ["a"] * 65}])
def test_stream_refuses_stop_strings_that_cannot_work(
    model: sinkstream.Model, options: dict[str, Any]
) -> None:
    with pytest.raises(sinkstream.InvalidArgument, match="`stop` must"):
        stream(model, **options)


def test_stream_refuses_a_bias_that_forbids_everything(model: sinkstream.Model) -> None:
    forbidden = dict.fromkeys(range(model.spec.vocab_size), -float("inf"))
    with pytest.raises(sinkstream.InvalidArgument, match="`logit_bias` must leave a token"):
        stream(model, logit_bias=forbidden)
    assert stream(model, max_tokens=3).result().finish_reason == "length"
