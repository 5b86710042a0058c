"""Structured output over HTTP: the fields of OpenAI, vLLM and llama.cpp, and what is refused."""

from __future__ import annotations

import json
import re
import threading
import time
from typing import Any

import pytest

from tests.python.server.http.running_server import CHAT, COMPLETIONS, HELLO, Running

jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("llguidance", reason="needs the extra `structured`")

RANDOM: dict[str, Any] = {"temperature": 1.0, "seed": 3, "max_tokens": 2000}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "tags": {"type": "array", "items": {"enum": ["größer", "\u96ea"]}, "maxItems": 3},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}
SLOW = {"type": "integer", "multipleOf": 1_000_003}


def content_of(server: Running, **fields: Any) -> str:
    answer = server.post(CHAT, {"messages": HELLO, **RANDOM, **fields})
    assert answer.status == 200, answer.body
    choice = answer.json["choices"][0]
    assert choice["finish_reason"] == "stop"
    return str(choice["message"]["content"])


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": FORMAT},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
        {"json_schema": SCHEMA},
    ],
    ids=lambda fields: "-".join(fields),
)
def test_every_field_with_a_schema_gives_the_reply_of_the_model(
    server: Running, fields: dict[str, Any]
) -> None:
    text = content_of(server, **fields)
    jsonschema.validate(json.loads(text), SCHEMA)
    assert text == server.model.generate(HELLO, schema=SCHEMA, **RANDOM).text


def test_any_object(server: Running) -> None:
    for fields in ({"response_format": {"type": "json_object"}},
                   {"structured_outputs": {"json_object": True}}):  # fmt: skip
        answer = server.post(CHAT, {"messages": HELLO, **RANDOM, "max_tokens": 20, **fields})
        assert answer.json["choices"][0]["message"]["content"].startswith("{")


def test_regex_choice_and_grammar(server: Running) -> None:
    regex = "[a-c]{3}-[0-9]+"
    assert re.fullmatch(regex, content_of(server, structured_outputs={"regex": regex}))
    choices = ['a "b"\\', "zwei\nZeilen", "雪"]
    seen = {
        content_of(server, structured_outputs={"choice": choices}, seed=seed, temperature=50.0)
        for seed in range(20)
    }
    assert len(seen) > 1
    assert seen <= set(choices)
    lark = 'start: "x" /[yz]+/ "x"'
    for fields in ({"structured_outputs": {"grammar": lark}}, {"grammar": lark}):
        assert re.fullmatch("x[yz]+x", content_of(server, **fields))


def test_completions_and_every_choice_follow_it(server: Running) -> None:
    body = {"prompt": ["the", "a boat"], "n": 2, **RANDOM, "response_format": FORMAT}
    choices = server.post(COMPLETIONS, body).json["choices"]
    assert len(choices) == 4
    for choice in choices:
        jsonschema.validate(json.loads(choice["text"]), SCHEMA)


def test_it_is_streamed_in_pieces_of_whole_characters(server: Running) -> None:
    whole = content_of(server, response_format=FORMAT)
    body = {"messages": HELLO, **RANDOM, "response_format": FORMAT, "stream": True}
    events = server.post(CHAT, body).body.decode().split("\n\n")
    chunks = [json.loads(event[6:]) for event in events if event.startswith("data: {")]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == whole


def test_max_tokens_cuts_it_and_the_reason_is_length(server: Running) -> None:
    body = {"messages": HELLO, **RANDOM, "max_tokens": 3, "response_format": FORMAT}
    choice = server.post(CHAT, body).json["choices"][0]
    assert choice["finish_reason"] == "length"
    with pytest.raises(ValueError, match="char"):
        json.loads(choice["message"]["content"])


@pytest.mark.parametrize(
    ("fields", "param", "sentence"),
    [
        ({"response_format": {"type": "x"}}, "response_format",
         '`response_format.type` must be "text", "json_object" or "json_schema".'),
        ({"response_format": {"type": "json_schema"}}, "response_format",
         "`response_format.schema` must be an object."),
        ({"response_format": {"type": "json_schema", "json_schema": 3}}, "response_format",
         "`response_format.json_schema` must be an object."),
        ({"response_format": {"type": "json_object", "schema": 3}}, "response_format",
         "`response_format.schema` must be an object."),
        ({"response_format": {"type": "json_schema",
                              "json_schema": {"schema": {"type": "y"}, "strict": True}}},
         "response_format", "`response_format` must be valid for llguidance, but is not: "),
        ({"response_format": FORMAT, "max_tokens": 100_000, "stream": True}, "max_tokens",
         "`max_tokens` must be at most 65536 with `response_format`, but is 100000."),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs",
         "`structured_outputs` must be valid for llguidance, but is not: unclosed group."),
        ({"structured_outputs": {}}, "structured_outputs",
         "`structured_outputs` must have exactly one of `json`, `regex`, `choice`, `grammar` "
         "and `json_object`, but has 0."),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs",
         "but has 2."),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs",
         "`structured_outputs.regex` must be a string."),
        ({"structured_outputs": {"choice": []}}, "structured_outputs",
         "`structured_outputs.choice` must be an array of at least 1 string."),
        ({"structured_outputs": {"choice": ["a", 1]}}, "structured_outputs",
         "of at least 1 string."),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs",
         "not yet supported"),
        ({"grammar": 'root ::= other'}, "grammar",
         "`grammar` must be valid GBNF, but is not: Rule 'other' not found."),
        ({"json_schema": {}, "grammar": 'start: "a"'}, "grammar",
         "`json_schema` and `grammar` may not be given together."),
        ({"json_schema": {"const": "a" * 70_000}}, "json_schema",
         "`json_schema` must have at most 65536 bytes, but has 70013."),
        ({"json_schema": 3}, "json_schema", "`json_schema` must be an object, but is 3."),
        ({"json_schema": SLOW}, "json_schema", "simple enough to compile within 2 s"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_bad_value_is_a_400_that_names_its_field(
    server: Running, path: str, fields: dict[str, Any], param: str, sentence: str
) -> None:
    if path == COMPLETIONS and fields.get("json_schema") is SLOW:
        pytest.skip("once is enough: it takes two seconds")
    asked = {"messages": HELLO} if path == CHAT else {"prompt": "the"}
    answer = server.post(path, {**asked, **RANDOM, **fields})
    assert answer.status == 400, answer.body
    error = answer.json["error"]
    assert sentence in error["message"]
    assert error["param"] == param


def test_deep_nesting_is_a_400(server: Running) -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(150):
        schema = {"type": "array", "items": schema}
    answer = server.post(CHAT, {"messages": HELLO, "json_schema": schema})
    assert answer.status == 400
    assert "recursion limit exceeded" in answer.json["error"]["message"]


def test_slow_grammars_delay_no_other_request(server: Running) -> None:
    body = {"messages": HELLO, **RANDOM, "max_tokens": 5, "ignore_eos": True}
    slow = [{**SLOW, "title": str(i)} for i in range(2)]
    asking = [
        threading.Thread(
            target=server.post, args=(CHAT, {"messages": HELLO, "json_schema": schema})
        )
        for schema in slow
    ]
    for thread in asking:
        thread.start()
    time.sleep(0.2)
    answered = 0
    while any(thread.is_alive() for thread in asking):
        assert server.post(CHAT, body).status == 200
        answered += 1
    for thread in asking:
        thread.join()
    assert answered > 3, "they were answered while grammars compiled"
