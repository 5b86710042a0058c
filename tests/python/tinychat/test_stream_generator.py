"""TinyChat's generator protocol over a session, without TinyChat's mistakes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sinkstream
from sinkstream import InvalidArgument, Session, SessionBusy
from sinkstream.tinychat import GenParams, Output, StreamGenerator

GREEDY = GenParams(temp=0.0, repeat_penalty=1.0, n_predict=7)
PROMPT = [10, 11, 12]


def greedy(tokens: int) -> GenParams:
    return replace(GREEDY, n_predict=tokens)


@pytest.fixture(scope="module")
def model(tiny_folder: Callable[[str], Path]) -> Iterator[sinkstream.Model]:
    with sinkstream.load(
        tiny_folder("llama"), sinks=4, window=60, threads=1, max_sequences=4
    ) as loaded:
        yield loaded


@pytest.fixture
def session(model: sinkstream.Model) -> Iterator[Session]:
    with model.session() as opened:
        yield opened


def turn(session: Session, content: Any, *arguments: Any, **options: Any) -> list[Output]:
    return list(StreamGenerator(session, content, *arguments, **options))


def reply_ids(model: sinkstream.Model, prompt: list[int], tokens: int) -> list[int]:
    return model.generate(prompt, max_tokens=tokens, temperature=0, ignore_eos=True).token_ids


# ---- the protocol ----


def test_every_dictionary_has_the_text_so_far_and_the_last_has_reason_and_timing(
    model: sinkstream.Model, session: Session
) -> None:
    outputs = turn(session, PROMPT, 0, GREEDY, stream_interval=1)
    ids = reply_ids(model, PROMPT, 7)
    result = model.generate(PROMPT, max_tokens=7, temperature=0)
    assert [list(output) for output in outputs] == 8 * [
        ["text", "usage", "finish_reason", "timing"]
    ]
    texts = [output["text"] for output in outputs]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert texts[-1] == result.text
    assert [output["finish_reason"] for output in outputs] == [None] * 7 + ["length"]
    assert [output["timing"] for output in outputs[:-1]] == [None] * 7
    timing = outputs[-1]["timing"]
    assert timing is not None
    assert (timing["context_tokens"], timing["total_tokens"]) == (3, 9)
    assert timing["context_time"] > 0
    assert len(timing["generation_time_list"]) == 6
    assert min(timing["generation_time_list"]) > 0
    assert session.token_ids == PROMPT + ids


@pytest.mark.parametrize(
    ("interval", "counts"),
    [(1, [1, 2, 3, 4, 5, 6, 7]), (2, [1, 3, 5, 7]), (3, [1, 4, 7]), (9, [1])],
)
def test_the_interval_says_after_which_tokens_a_dictionary_comes(
    session: Session, interval: int, counts: list[int]
) -> None:
    outputs = turn(session, PROMPT, 0, GREEDY, stream_interval=interval)
    usages = [output["usage"] for output in outputs]
    assert [usage["completion_tokens"] for usage in usages] == [*counts, 7]
    assert {usage["prompt_tokens"] for usage in usages} == {3}
    assert [usage["total_tokens"] for usage in usages] == [3 + count for count in [*counts, 7]]


def test_the_default_interval_is_two(session: Session) -> None:
    assert len(turn(session, PROMPT, 0, GREEDY)) == 5


def test_a_message_goes_through_the_sessions_template(model: sinkstream.Model) -> None:
    with model.session("Be brief.") as ours, model.session("Be brief.") as plain:
        start = 0
        for content in ("Hello there", "And so?", "The sea"):
            last = turn(ours, content, start, GREEDY)[-1]
            reply = plain.stream(content, max_tokens=7, temperature=0).result()
            assert last["text"] == reply.text
            assert last["timing"] is not None
            start += last["timing"]["total_tokens"]
            assert start == ours.stats.tokens == plain.stats.tokens
        assert ours.token_ids == plain.token_ids


@pytest.mark.parametrize("content", ["Hello there", [42, 71, 282]])
def test_an_echo_puts_the_input_before_the_reply(model: sinkstream.Model, content: Any) -> None:
    with model.session() as one, model.session() as two:
        plain = turn(one, content, 0, GREEDY)
        echoed = turn(two, content, 0, GREEDY, echo=True)
    before = content if isinstance(content, str) else model.tokenizer.decode(content)
    assert [output["text"] for output in echoed] == [before + output["text"] for output in plain]


# ---- sampling ----


def test_the_parameters_are_those_of_the_original_by_attribute_or_by_name(
    model: sinkstream.Model,
) -> None:
    values = {"temp": 1.2, "top_k": 30, "top_p": 0.9, "repeat_penalty": 1.3, "n_predict": 20}
    options: dict[str, Any] = {"temperature": 1.2, "top_k": 30, "top_p": 0.9, "min_p": 0.0}
    expected = model.generate(PROMPT, max_tokens=20, repetition_penalty=1.3, seed=5, **options).text
    inert = {"n_threads": 1, "n_ctx": 512, "n_vocab": 32000, "repeat_last_n": 64, "mirostat": 0}
    temperature = {"temperature" if name == "temp" else name: x for name, x in values.items()}
    for params in (
        GenParams(**values, seed=5),  # type: ignore[arg-type]
        values | {"seed": 5},
        values | {"seed": 5} | inert,
        temperature | {"seed": 5},
        SimpleNamespace(**values, seed=5, **inert),
    ):
        with model.session() as session:
            assert turn(session, PROMPT, 0, params)[-1]["text"] == expected


def test_the_defaults_are_the_originals() -> None:
    params = GenParams()
    assert (params.temp, params.top_k, params.top_p) == (0.7, 40, 0.95)
    assert (params.repeat_penalty, params.n_predict, params.seed) == (1.1, 512, -1)


@pytest.mark.parametrize(
    "params",
    [
        {"temp": 0.0, "top_k": 0, "top_p": 1.0},
        {"temp": 1e-6, "top_k": -1, "top_p": 2.0},
        {"temp": 1.0, "top_k": 0, "top_p": 0.0},  # nothing is left but the most probable token
    ],
)
def test_the_originals_ways_to_say_greedy_are_greedy(
    model: sinkstream.Model, session: Session, params: dict[str, Any]
) -> None:
    turn(session, PROMPT, 0, params | {"repeat_penalty": 0.5, "n_predict": 7})
    assert session.token_ids[3:] == reply_ids(model, PROMPT, 7)


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"temprature": 1}, r"`temprature`.*supported names are .*`n_predict`.*`temp`"),
        ({"mirostat": 2}, "`mirostat` must be 0, which turns it off, but is 2."),
        ({"tfs_z": 0.5}, "`tfs_z` must be 1.0, which turns it off, but is 0.5."),
        ({"typical_p": 0.5}, "`typical_p` must be 1.0"),
        ({"n_predict": -1}, "`n_predict` must be"),
        ({"temp": -1.0}, "`temp` must be"),
        ({"temp": math.nan}, "`temp` must be"),
        ({"top_p": math.nan}, "`top_p` must be"),
        ({"temp": 1.0, "temperature": 0.5}, "must have `temp` or `temperature`, but has both."),
    ],
)
def test_a_parameter_that_cannot_be_kept_is_refused_by_its_name(
    session: Session, params: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        StreamGenerator(session, PROMPT, 0, params)
    assert session.stats.tokens == 0


@pytest.mark.parametrize("params", [{"n_predict": "7"}, {"temp": "hot"}, {"top_k": 1.5}, 7])
def test_a_parameter_of_another_type_is_a_type_error(session: Session, params: Any) -> None:
    with pytest.raises(TypeError, match="StreamGenerator: "):
        StreamGenerator(session, PROMPT, 0, params)


@pytest.mark.parametrize("interval", [0, -1])
def test_an_interval_below_one_is_refused_at_the_call(session: Session, interval: int) -> None:
    with pytest.raises(InvalidArgument, match="`stream_interval` must be"):
        StreamGenerator(session, PROMPT, 0, GREEDY, stream_interval=interval)


def test_the_session_must_be_one(model: sinkstream.Model) -> None:
    with pytest.raises(TypeError, match=r"`session` must be a Session.*model\.session\(\)"):
        StreamGenerator(model, PROMPT, 0, GREEDY)  # type: ignore[arg-type]


# ---- the original's mistakes ----


def test_turns_equal_one_conversation_although_each_ends_by_length(
    model: sinkstream.Model, session: Session
) -> None:
    """The original's cache lacks the last token of a reply that reached its length limit."""
    history: list[int] = []
    start = 0
    for index in range(20):
        new = [20 + index, 30 + index, 40]
        last = turn(session, new, start, greedy(5))[-1]
        history += new
        ids = reply_ids(model, history, 5)
        assert last["usage"]["completion_tokens"] == 5
        history += ids
        assert last["timing"] is not None
        start += last["timing"]["total_tokens"]
        assert start == session.stats.tokens == len(history) - 1  # the last is read next
    assert session.stats.evicted_tokens > 60


def test_a_stop_at_the_last_allowed_token_is_a_stop(model: sinkstream.Model) -> None:
    """The original says "length", because it compares the count first."""
    stop = reply_ids(model, PROMPT, 3)[2]
    for tokens, reason in ((2, "length"), (3, "stop"), (7, "stop")):
        with model.session() as session:
            params = greedy(tokens)
            last = turn(session, PROMPT, 0, params, stop_token_ids=[stop])[-1]
        assert last["finish_reason"] == reason
        assert last["usage"] == {
            "prompt_tokens": 3,
            "completion_tokens": min(tokens, 3),
            "total_tokens": 3 + min(tokens, 3),
        }


def test_a_stop_token_has_no_text(model: sinkstream.Model, session: Session) -> None:
    ids = reply_ids(model, PROMPT, 3)
    last = turn(session, PROMPT, 0, GREEDY, stop_token_ids=(ids[2],))[-1]
    assert last["text"] == model.generate(PROMPT, max_tokens=2, temperature=0).text


def test_the_callers_list_of_stop_tokens_does_not_grow(session: Session) -> None:
    stops = [250]
    turn(session, PROMPT, 0, GREEDY, stop_token_ids=stops)
    turn(session, PROMPT, None, GREEDY)
    assert stops == [250]


def test_text_is_assembled_and_never_decoded_again() -> None:
    """The original decodes all ids again for every token."""
    tokens = [sinkstream.Token(text=f"{index} ", id=index, logprob=0.0) for index in range(500)]
    played: list[Any] = [*tokens, sinkstream.Finished("length", text="…")]

    class Played:
        """A stream without ids to decode."""

        stats = SimpleNamespace(
            prompt_tokens=3, generated_tokens=500, time_to_first_token_s=0.5, tokens_per_s=10.0
        )

        def __enter__(self) -> Played:
            return self

        def __exit__(self, *_: object) -> None: ...

        def events(self) -> Iterator[Any]:
            yield from played

    from sinkstream.tinychat.stream_generator import Turn, read_turn

    turn = Turn(Played(), counted=lambda: 502, start_pos=0, interval=100)  # type: ignore[arg-type]
    outputs = list(read_turn(turn))
    assert [output["usage"]["completion_tokens"] for output in outputs] == [
        *(1, 101, 201, 301, 401),
        500,
    ]
    assert outputs[-1]["text"] == "".join(token.text for token in tokens) + "…"
    assert outputs[-1]["timing"] == {
        "context_tokens": 3,
        "context_time": 0.5,
        "total_tokens": 502,
        "generation_time_list": [0.1] * 499,
    }


def test_half_a_character_is_never_in_the_text(model: sinkstream.Model) -> None:
    """The original decodes the first bytes of a character to a replacement mark."""
    snowman = model.tokenizer.encode("☃", add_special_tokens=False).ids
    assert len(snowman) > 1
    bias = dict.fromkeys(snowman, 100.0)
    with model.session() as session:
        params = {"temp": 1.0, "n_predict": 60, "seed": 3, "logit_bias": bias, "top_k": 0}
        texts = [each["text"] for each in turn(session, PROMPT, 0, params, stream_interval=1)]
        whole = texts[-1]
    assert "☃" in whole
    assert all(whole.startswith(text) for text in texts)


def test_two_generators_keep_their_own_counts(model: sinkstream.Model) -> None:
    """The original counts in globals of its module."""
    with model.session() as one, model.session() as two:
        first = StreamGenerator(one, PROMPT, 0, GREEDY, stream_interval=1)
        next(first)
        other = turn(two, [20] * 30, 0, greedy(3))[-1]
        last = [*first][-1]
    assert last["timing"] is not None
    assert other["timing"] is not None
    assert (last["timing"]["context_tokens"], last["timing"]["total_tokens"]) == (3, 9)
    assert (other["timing"]["context_tokens"], other["timing"]["total_tokens"]) == (30, 32)


def test_no_token_at_all_still_has_a_last_dictionary(session: Session) -> None:
    """The original ends in a NameError."""
    (last,) = turn(session, PROMPT, 0, greedy(0))
    assert (last["text"], last["finish_reason"]) == ("", "length")
    assert last["usage"] == {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}
    assert last["timing"] is not None
    assert last["timing"]["total_tokens"] == session.stats.tokens
    assert last["timing"]["generation_time_list"] == []


# ---- positions and endings ----


@pytest.mark.parametrize("start", [0, 8, 10, -1])
def test_a_position_that_is_not_the_sessions_is_refused(session: Session, start: int) -> None:
    turn(session, PROMPT, 0, GREEDY)
    with pytest.raises(InvalidArgument, match=r"`start_pos` must be 9, .* but is -?\d+"):
        StreamGenerator(session, PROMPT, start, GREEDY)
    assert session.stats.tokens == 9
    assert turn(session, PROMPT, 9, GREEDY)[-1]["usage"]["prompt_tokens"] == 4
    assert turn(session, PROMPT, None, GREEDY)[-1]["usage"]["prompt_tokens"] == 4


def test_leaving_the_loop_ends_the_turn_and_the_session_continues(session: Session) -> None:
    params = greedy(100_000)
    generator = StreamGenerator(session, PROMPT, 0, params)
    for output in generator:
        if output["usage"]["completion_tokens"] > 5:
            break
    generator.close()
    assert turn(session, PROMPT, None, GREEDY)[-1]["finish_reason"] == "length"


def test_a_generator_that_is_forgotten_ends_its_turn(session: Session) -> None:
    StreamGenerator(session, PROMPT, 0, greedy(100_000))
    for _ in range(1000):
        try:
            turn(session, PROMPT, None, GREEDY)
            return
        except SessionBusy:
            continue
    pytest.fail("the turn of a forgotten generator still runs")


def test_an_error_of_the_session_is_raised_by_the_generator(model: sinkstream.Model) -> None:
    session = model.session()
    session.close()
    with pytest.raises(InvalidArgument, match="closed"):
        StreamGenerator(session, PROMPT, 0, GREEDY)
