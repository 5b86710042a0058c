"""What is refused, and that the message says why."""

from __future__ import annotations

import importlib.util
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream import InvalidArgument
from sinkstream.request.json_schema import as_schema_text
from sinkstream.structured import grammars

PROMPT = [5, 9, 17]
# Takes llguidance many times the limit.
SLOW = {"type": "integer", "multipleOf": 1_000_003}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"schema": "{"}, "`schema` must be valid for llguidance, but is not: "),
        ({"schema": "[]"}, "but is not: schema must be an object or boolean."),
        ({"schema": {"type": "string", "contains": {}}}, 'Unimplemented keys: ["contains"]'),
        ({"schema": {"$ref": "http://schema.example/a.json"}}, "retrieving it failed"),
        ({"schema": "false"}, "but is not: Unsatisfiable schema: schema is false"),
        ({"schema": {"type": "wrong"}}, "`schema` must be valid for llguidance, but is not: "),
        ({"regex": "("}, "`regex` must be valid for llguidance, but is not: unclosed group."),
        ({"regex": "(?=a)b"}, "but is not: look-around"),
        ({"grammar": "start: unknown"}, "`grammar` must be valid for llguidance, but is not: "),
        ({"grammar": "start: start"}, "`grammar` must be within the limits of llguidance"),
        ({"regex": "a\0b"}, "`regex` must not contain a zero byte, but does."),
        ({"regex": "a" * 65537}, "`regex` must have at most 65536 bytes, but has 65537."),
        ({"regex": "a?" * 30000}, "`regex` must be valid for llguidance, but is not: "),
        ({"regex": "a\ud800"}, "`regex` must be valid Unicode, but has the lone surrogate U+D800"),
        ({"schema": {"a": math.nan}}, "`schema` must hold only JSON, but does not: "),
        ({"regex": "a", "schema": {}}, "at most one of `schema`, `regex` and `grammar` may be "
                                       "given, but `schema` and `regex` are."),
        ({"regex": "a", "max_tokens": 65537}, "`max_tokens` must be at most 65536 with `regex`, "
                                              "but is 65537."),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_at_the_call(
    model: sinkstream.Model, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        model.stream(PROMPT, **options)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("stream: ")
    assert caught.value.param in options
    assert model.generate(PROMPT, regex="abc", max_tokens=9).text == "abc", "the model goes on"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"schema": 5}, "`schema` must be a dict, a JSON string or a class with "
                        "`model_json_schema`, but is of type int."),
        ({"schema": int}, "but is of type type."),
        ({"schema": {"a": {1, 2}}}, "`schema` must hold only JSON, but does not: "),
        ({"regex": b"a"}, "`regex` must be a string, but is of type bytes."),
        ({"grammar": 1}, "`grammar` must be a string, but is of type int."),
        ({"json_schema": {}}, "there is no option `json_schema`."),
    ],
)  # fmt: skip
def test_a_wrong_type_is_a_type_error(
    model: sinkstream.Model, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(TypeError) as caught:
        model.stream(PROMPT, **options)
    assert sentence in str(caught.value)


def test_a_schema_that_is_nested_too_deeply_is_refused(model: sinkstream.Model) -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(200):
        schema = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(InvalidArgument, match="recursion limit exceeded"):
        model.stream(PROMPT, schema=schema)
    for _ in range(100_000):
        schema = {"a": schema}
    with pytest.raises(InvalidArgument, match="`schema` must hold only JSON"):
        model.stream(PROMPT, schema=schema)
    while schema:  # a destructor that recurses would not survive it
        schema = schema.pop("a", {})


def test_a_chain_of_thousands_of_rules_is_followed(model: sinkstream.Model) -> None:
    for name in ("r", "T"):  # rules and terminals, each of which the library follows recursively
        rules = "".join(f"{name}{i}: {name}{i + 1}\n" for i in range(4000))
        grammar = f'start: {name}0\n{rules}{name}4000: "abc"'
        assert model.generate(PROMPT, grammar=grammar, max_tokens=9).text == "abc"


def test_a_grammar_that_takes_too_long_is_refused_while_other_replies_go_on(
    model: sinkstream.Model,
) -> None:
    with model.stream(PROMPT, temperature=1.0, ignore_eos=True) as other:
        next(other)
        begin = time.monotonic()
        with pytest.raises(InvalidArgument, match="simple enough to compile within 2 s"):
            model.stream(PROMPT, schema=SLOW)
        assert time.monotonic() - begin < 15  # a second or more after the limit, on a busy machine
        before = model.stats()["generated_tokens"]
        for _ in range(20):
            next(other)
        assert model.stats()["generated_tokens"] > before


def test_generate_many_refuses_at_the_call(model: sinkstream.Model) -> None:
    with pytest.raises(InvalidArgument, match="unclosed group"):
        model.generate_many([PROMPT], regex="(")


def test_a_reply_that_exceeds_a_limit_ends_alone(model: sinkstream.Model) -> None:
    other = model.stream(PROMPT, temperature=1.0, seed=3, max_tokens=300, ignore_eos=True)
    # After the brace, more properties may come next than the library follows.
    schema = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(800)}}
    with pytest.raises(InvalidArgument, match="`schema` must be within the limits of llguidance"):
        model.generate(PROMPT, schema=schema, max_tokens=40, temperature=1.0, seed=1)
    assert len(other.result().token_ids) == 300


def test_the_text_of_a_schema_keeps_its_order() -> None:
    schema = {"properties": {"b": {}, "a": {"const": "größer"}}}
    assert json.loads(as_schema_text("stream", "schema", schema)) == schema
    assert as_schema_text("stream", "schema", schema).index('"b"') < 20


@pytest.fixture
def fresh_library() -> Any:
    grammars.functions.cache_clear()
    yield
    grammars.functions.cache_clear()


def refusal(folder: Path) -> str:
    with sinkstream.load(folder, window=60, threads=1) as model:
        with pytest.raises(InvalidArgument) as caught:
            model.stream(PROMPT, schema={})
        assert caught.value.param == "schema"
        return str(caught.value)


def test_without_the_library_the_message_says_what_to_install(
    tiny_folder: Callable[[str], Path], fresh_library: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert refusal(tiny_folder("llama")) == (
        "stream: `schema` needs llguidance 1.9.x, which is not installed. "
        "`pip install 'llguidance<1.10,>=1.9'` installs it."
    )


def test_another_release_is_refused(
    tiny_folder: Callable[[str], Path], fresh_library: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammars, "_version", lambda _: "2.0.0")
    assert refusal(tiny_folder("llama")) == (
        "stream: `schema` needs llguidance 1.9.x, but 2.0.0 was found. "
        "`pip install 'llguidance<1.10,>=1.9'` installs it."
    )


def test_the_library_has_a_version_and_every_function() -> None:
    assert len(grammars.functions()) == len(sinkstream._core.grammar_functions())
    assert grammars._version(grammars._load()).startswith("1.9.")


def test_a_checkpoint_without_a_tokenizer_is_refused(tiny_folder: Callable[[str], Path]) -> None:
    folder = tiny_folder("qwen3")
    with sinkstream.load(folder, window=60, threads=1) as model:
        if model.tokenizer is not None:
            pytest.skip("this tiny model has a tokenizer")
        with pytest.raises(InvalidArgument, match="`regex` needs a tokenizer"):
            model.stream(PROMPT, regex="a")
