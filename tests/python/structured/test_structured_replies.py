"""Replies that follow a schema, a regular expression or a grammar: what they hold, how they end."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import sinkstream
from sinkstream import InvalidArgument
from tests.python.structured.schemas import PERSON, SCHEMAS

PROMPT = [5, 9, 17]
RANDOM: dict[str, Any] = {"temperature": 1.0, "max_tokens": 3000}


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_reply_is_an_instance_of_its_schema(model: sinkstream.Model, name: str) -> None:
    schema = SCHEMAS[name]
    validator = jsonschema.Draft202012Validator(schema)
    streams = [model.stream([5, seed], schema=schema, seed=seed, **RANDOM) for seed in range(8)]
    texts = set()
    for stream in streams:
        pieces = list(stream)
        assert stream.finish_reason == "stop"
        validator.validate(json.loads("".join(pieces)))
        texts.add("".join(pieces))
    if name not in ("const", "null", "boolean", "no properties"):
        assert len(texts) > 2, "the seeds draw different replies"


def test_a_dict_its_text_and_a_class_are_the_same_schema(model: sinkstream.Model) -> None:
    class Person:
        @classmethod
        def model_json_schema(cls) -> dict[str, Any]:
            return PERSON

    forms: list[Any] = [PERSON, json.dumps(PERSON), Person]
    texts = {model.generate(PROMPT, schema=form, seed=1, **RANDOM).text for form in forms}
    assert len(texts) == 1


def test_pydantic_reads_what_it_described(model: sinkstream.Model) -> None:
    pydantic = pytest.importorskip("pydantic")

    class City(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        model_config = pydantic.ConfigDict(extra="forbid")
        name: str = pydantic.Field(max_length=10)
        people: int
        tags: list[bool] = pydantic.Field(max_length=3)

    text = model.generate(PROMPT, schema=City, seed=2, **RANDOM).text
    assert City.model_validate_json(text).model_dump().keys() == {"name", "people", "tags"}


def test_any_object(model: sinkstream.Model) -> None:
    result = model.generate(
        PROMPT,
        schema={"type": "object", "maxProperties": 1},
        seed=4,
        temperature=0.0,
        max_tokens=400,
    )
    assert result.text.startswith("{")


def test_a_regular_expression_matches_the_whole_reply(model: sinkstream.Model) -> None:
    pattern = r"(yes|no|größer)-[0-9]{2,4}[é雪]?"
    for seed in range(20):
        result = model.generate(PROMPT, regex=pattern, seed=seed, **RANDOM)
        assert re.fullmatch(pattern, result.text)
        assert result.finish_reason == "stop"


def test_a_grammar_may_hold_json_and_text(model: sinkstream.Model) -> None:
    grammar = (
        'start: call+\ncall: "<call>" args "</call>"\n'
        'args: %json {"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],'
        '"additionalProperties":false}'
    )
    text = model.generate(PROMPT, grammar=grammar, seed=1, **RANDOM).text
    calls = re.fullmatch(r"(<call>(.*?)</call>)+", text, re.DOTALL)
    assert calls is not None
    assert json.loads(calls[2]).keys() == {"n"}


def test_an_end_token_is_possible_exactly_where_the_reply_is_complete(
    model: sinkstream.Model,
) -> None:
    end = min(model.end_token_ids)
    eager = {end: 1e4}  # as soon as it may, it ends
    assert model.generate(PROMPT, regex="a{3,}", logit_bias=eager, **RANDOM).text == "aaa"
    assert model.generate(PROMPT, regex="(ab)*", logit_bias=eager, **RANDOM).text == ""
    never = {end: -1e4}
    result = model.generate(
        PROMPT, regex="(ab){2,3}", logit_bias=never, temperature=1.0, max_tokens=50
    )
    assert (result.text, result.finish_reason) == ("ababab", "stop"), "nothing else may follow"
    assert end not in result.token_ids, "it needs no end token"


def test_ignore_eos_does_not_go_past_the_end(model: sinkstream.Model) -> None:
    eager = {min(model.end_token_ids): 1e4}
    result = model.generate(PROMPT, regex="a{3,}", logit_bias=eager, ignore_eos=True, **RANDOM)
    assert (result.text, result.finish_reason) == ("aaa", "stop")


def test_max_tokens_cuts_and_patches_nothing(model: sinkstream.Model) -> None:
    whole = model.generate(PROMPT, schema=PERSON, seed=3, **RANDOM)
    cut = model.generate(PROMPT, schema=PERSON, seed=3, temperature=1.0, max_tokens=5)
    assert cut.finish_reason == "length"
    assert cut.token_ids == whole.token_ids[:5]


def test_stop_strings_end_it(model: sinkstream.Model) -> None:
    result = model.generate(PROMPT, schema=PERSON, seed=3, stop='"age', **RANDOM)
    assert result.finish_reason == "stop_string"
    assert result.text.lstrip().startswith("{")
    assert "age" not in result.text


def test_a_grammar_that_forbids_nothing_changes_no_token(model: sinkstream.Model) -> None:
    # Control tokens and bytes that are no characters are never allowed, so they are out for both.
    letters = {3 + i for i in range(94)}
    others = set(range(model.spec.vocab_size)) - letters
    options: dict[str, Any] = {"max_tokens": 40, "logit_bias": dict.fromkeys(others, -1e4)}
    anything = r"(?s:.*)"
    for more in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 5, "repetition_penalty": 1.2}):
        free = model.generate(PROMPT, **options, **more)  # type: ignore[arg-type]
        bound = model.generate(PROMPT, regex=anything, **options, **more)  # type: ignore[arg-type]
        assert bound.token_ids == free.token_ids
        assert bound.logprobs == free.logprobs


def test_logprobs_are_those_of_the_model_without_the_grammar(model: sinkstream.Model) -> None:
    free = model.generate(PROMPT, temperature=0.0, max_tokens=1, logprobs=5, ignore_eos=True)
    bound = model.generate(PROMPT, temperature=0.0, max_tokens=1, logprobs=5, regex="q")
    assert bound.alternatives == free.alternatives
    assert bound.text == "q"
    assert bound.logprobs[0] < free.logprobs[0]


def test_replies_are_the_same_alone_together_and_in_any_chunks(
    model: sinkstream.Model, tiny_folder: Any
) -> None:
    prompts = [[5, 9, 17] * 30, [6], [7, 8] * 20]
    jobs: list[tuple[list[int], dict[str, Any]]] = [
        (prompt, {"seed": seed, **RANDOM, "max_tokens": 60, **more})
        for seed, more in enumerate(
            ({"schema": PERSON}, {}, {"schema": SCHEMAS["objects"]}, {"regex": "[a-f]{50}"})
        )
        for prompt in prompts
    ]
    alone = [model.generate(prompt, **options).token_ids for prompt, options in jobs]
    together = [model.stream(prompt, **options) for prompt, options in jobs]
    assert [stream.result().token_ids for stream in together] == alone
    for threads, chunk in ((2, 7), (1, 64)):
        with sinkstream.load(
            tiny_folder("llama"),
            sinks=4,
            window=60,
            threads=threads,
            max_sequences=5,
            prefill_chunk=chunk,
        ) as other:
            streams = [other.stream(prompt, **options) for prompt, options in jobs]
            assert [stream.result().token_ids for stream in streams] == alone


def test_a_session_continues_after_a_grammar_and_so_does_a_fork(model: sinkstream.Model) -> None:
    with model.session() as session:
        first = session.generate([5, 9], schema=PERSON, seed=1, **RANDOM)
        json.loads(first.text)
        with session.fork() as fork:
            assert fork.generate([8], regex="[xyz]{4}", seed=2, **RANDOM).text.strip("xyz") == ""
        free = session.generate([8], temperature=1.0, seed=3, max_tokens=6, ignore_eos=True)
        with pytest.raises(InvalidArgument, match="`regex` must be valid"):
            session.stream([8], regex="(")
        again = session.generate([8], regex="[xyz]{4}", seed=2, **RANDOM)
        assert again.text.strip("xyz") == ""
    with model.session() as plain:
        plain.append([5, 9, *first.token_ids])
        expected = plain.generate([8], temperature=1.0, seed=3, max_tokens=6, ignore_eos=True)
    assert expected.token_ids == free.token_ids


def test_it_can_be_cancelled_in_the_middle(model: sinkstream.Model) -> None:
    stream = model.stream(PROMPT, regex="[ab]*", temperature=1.0, seed=1,
                          logit_bias={min(model.end_token_ids): -1e4})  # fmt: skip
    next(stream)
    stream.cancel()
    assert stream.result().finish_reason == "cancelled"
    assert model.stats()["running"] == 0


# In a process of its own: grammars of other tests may still be compiling in this one.
LONG_REPLY = """
import sys
from pathlib import Path
import sinkstream

def rss_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

model = sinkstream.load(sys.argv[1], sinks=4, window=60, threads=1, max_sequences=8)
options = {
    "schema": {"type": "array", "items": {"type": "integer"}},
    "logit_bias": {min(model.end_token_ids): -1e4, 3 + ord("]") - ord("!"): -1e4},
    "temperature": 1.0,
    "seed": 1,
}
model.generate([5, 9, 17], max_tokens=200, **options)  # libraries and pools are there
before = rss_bytes()
with model.stream([5, 9, 17], max_tokens=None, stream_interval=64, **options) as stream:
    result = stream.result()
    print(rss_bytes() - before, result.finish_reason, result.stats.generated_tokens)
"""


def test_memory_is_bounded_over_a_long_reply(tiny_folder: Callable[[str], Path]) -> None:
    command = [sys.executable, "-c", LONG_REPLY, str(tiny_folder("llama"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    grown, reason, tokens = done.stdout.split()
    assert (reason, tokens) == ("length", "65536")
    assert int(grown) < 48 << 20, f"{int(grown) / 2**20:.0f} MB"


def test_generation_goes_on_while_python_holds_the_gil(model: sinkstream.Model) -> None:
    options: dict[str, Any] = {"regex": "[ab]*", "logit_bias": {min(model.end_token_ids): -1e4}}
    with model.stream(PROMPT, temperature=1.0, seed=1, **options) as running:
        for _ in range(50):
            next(running)
            before = model.stats()["generated_tokens"]
            ctypes.PyDLL(None).usleep(50_000)  # without releasing the GIL
            if model.stats()["generated_tokens"] - before > 20:
                return
    pytest.fail("nothing is generated while Python holds the GIL")


def test_generate_many_takes_a_schema(model: sinkstream.Model) -> None:
    replies = list(
        model.generate_many([[5, i] for i in range(10)], schema=PERSON, seed=1, **RANDOM)
    )
    for _, reply in replies:
        assert isinstance(reply, sinkstream.Result)
        jsonschema.validate(json.loads(reply.text), PERSON)
