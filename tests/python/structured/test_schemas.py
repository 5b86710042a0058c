"""Schemas that llguidance follows wrongly are rewritten; what it cannot enforce is dropped."""

from __future__ import annotations

import json
import logging
import random
from decimal import Decimal
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer, grammar_from

import sinkstream
from sinkstream import InvalidArgument
from sinkstream.model import host_of
from sinkstream.request.cancellation import checking
from sinkstream.structured.schemas import enforceable, exact, lenient, with_bounded_blanks
from tests.python.structured.generated_schemas import GENERATED
from tests.python.text.tool_templates import function

_BYTES = LLTokenizer("byte")
_NUMBERS: tuple[int | float, ...] = (
    0, 1, -1, 0.5, -0.5, 0.1, 0.25, 1.5, -1.5, 10, -10, 2.75, 0.001, 100, 99.9, -0.01, 3, 7.25,
    2**53, 2**53 + 1, 2**60 + 7, -(2**63), 2**63 - 1, 2**64, 1e30, -1e30, 1e-300, -1e-300, 1e-9,
    1e18, -1e18, 123456789.123, 5e-324, 1.7976931348623157e308,
)  # fmt: skip


def fault(schema: Any) -> str:
    return str(LLMatcher.validate_grammar(grammar_from("json_schema", json.dumps(schema))))


def sample(schema: Any, draw: random.Random, most: int = 80) -> str | None:
    """Return a random complete instance; None if it does not end."""
    matcher = LLMatcher(_BYTES, grammar_from("json_schema", json.dumps(schema)))
    assert not matcher.is_error(), matcher.get_error()
    written = bytearray()
    while len(written) < most and not matcher.is_stopped():
        bias = matcher.compute_logit_bias()
        allowed = [byte for byte in range(256) if bias[byte]]
        if matcher.is_accepting() and (not allowed or draw.random() < 0.3):
            break
        byte = draw.choice([one for one in allowed if one not in b" \n\t\r"] or allowed)
        written.append(byte)
        matcher.consume_token(byte)
    is_complete = matcher.is_stopped() or matcher.is_accepting()
    return written.decode(errors="replace") if is_complete else None


BLANKS = b" \n\t\r"
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
PAIR = {
    "type": "object",
    "properties": {"a": DIGIT, "b": {"type": "array", "items": DIGIT, "maxItems": 2}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def longest_blank(schema: Any) -> int:
    """Return the longest white space of an instance that has as much as it may, up to 500 bytes."""
    matcher = LLMatcher(_BYTES, grammar_from("json_schema", json.dumps(schema)))
    longest = run = 0
    for _ in range(500):
        bias = matcher.compute_logit_bias()
        allowed = [byte for byte in range(256) if bias[byte]]
        if matcher.is_stopped() or not allowed:
            break
        blanks = [byte for byte in allowed if byte in BLANKS]
        run = run + 1 if blanks else 0
        longest = max(longest, run)
        matcher.consume_token(10 if 10 in blanks else (blanks or allowed)[0])
    return longest


def test_white_space_has_an_end() -> None:
    for schema in (PAIR, {"type": "array", "items": DIGIT}):
        assert longest_blank(schema) > 400
        assert 80 < longest_blank(with_bounded_blanks(schema)) < 90
    compact = {**PAIR, "x-guidance": {"whitespace_flexible": False}}
    assert with_bounded_blanks(compact) == compact


@pytest.mark.parametrize("indent", [None, 1, 2, 4, "\t"])
def test_json_may_be_indented(indent: int | str | None) -> None:
    value: Any = {"a": 1, "b": [2, 3]}
    for _ in range(9):
        value = {"inner": value, "list": [value]} if _ % 3 == 0 else {"inner": value}
    for text in (json.dumps(value, indent=indent), json.dumps(value, separators=(" , ", " : "))):
        schema = with_bounded_blanks({"type": "object"})
        matcher = LLMatcher(_BYTES, grammar_from("json_schema", json.dumps(schema)))
        assert matcher.consume_tokens(list(text.encode()))
        assert matcher.is_accepting()


def number(value: Any) -> Decimal:
    return Decimal(value if isinstance(value, int | str) else repr(value))


def is_within(schema: dict[str, Any], text: str) -> bool:
    """Return whether a number is within the bounds, exactly."""
    value = number(text)
    checks = {
        "minimum": value.__ge__, "exclusiveMinimum": value.__gt__,
        "maximum": value.__le__, "exclusiveMaximum": value.__lt__,
    }  # fmt: skip
    is_kind = schema["type"] == "number" or value == value.to_integral_value()
    return is_kind and all(
        check(number(schema[key])) for key, check in checks.items() if key in schema
    )


def check_bounds(cases: int, seed: int) -> int:
    """Sample numbers within random bounds; return how many there were."""
    draw = random.Random(seed)
    found = 0
    for _ in range(cases):
        schema: dict[str, Any] = {"type": draw.choice(["number", "integer"])}
        for names in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if draw.random() < 0.8:
                schema[draw.choice(names)] = draw.choice(_NUMBERS)
        followed = exact(schema)
        if fault(followed):
            continue
        for _ in range(3):
            text = sample(followed, draw)
            if text is not None:
                found += 1
                assert is_within(schema, text), (schema, followed, text)
    return found


def test_numbers_are_within_their_bounds() -> None:
    assert check_bounds(150, 0) > 200


@pytest.mark.slow
def test_many_numbers_are_within_their_bounds() -> None:
    assert check_bounds(5000, 1) > 8000


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5},
        {"type": "number", "minimum": -1.5, "exclusiveMaximum": -1},
        {"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 3},
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 0.5},
    ],
)
def test_bounds_that_llguidance_reads_wrongly_are_moved(schema: dict[str, Any]) -> None:
    draw = random.Random(0)
    current = {key: value for key, value in schema.items() if value is not True}
    if "exclusiveMinimum" in schema and schema["exclusiveMinimum"] is True:
        current["exclusiveMinimum"] = current.pop("minimum")
    texts = [sample(exact(schema), draw) for _ in range(40)]
    assert all(is_within(current, text) for text in texts if text is not None)
    assert any(texts)


def test_the_bounds_that_remain_are_tight() -> None:
    assert exact({"type": "integer", "minimum": 1.5, "exclusiveMaximum": 4}) == {
        "type": "integer", "minimum": 2, "maximum": 3,
    }  # fmt: skip
    assert exact({"type": "integer", "maximum": 2**53 + 1})["maximum"] == 2**53
    assert exact({"type": "integer", "minimum": -(2**63)})["minimum"] == -(2**63) + 1024
    assert exact({"type": "number", "exclusiveMinimum": 2.5}) == {
        "type": "number", "exclusiveMinimum": 2.5,
    }  # fmt: skip


@pytest.mark.parametrize("name", GENERATED)
def test_what_a_generator_writes_is_enforced_as_far_as_possible(name: str) -> None:
    schema, expected = GENERATED[name]
    kept, dropped = enforceable(lenient(schema), fault)
    assert set(dropped) == expected
    assert fault(kept) == ""
    checked = {key: value for key, value in kept.items() if key != "x-guidance"}
    draw = random.Random(0)
    texts = [text for _ in range(6) if (text := sample(kept, draw, 150)) is not None]
    for text in texts:
        jsonschema.Draft202012Validator(checked).validate(json.loads(text))


def test_a_tool_that_cannot_be_enforced_is_named_only_if_it_is_strict(
    model: sinkstream.Model, caplog: pytest.LogCaptureFixture
) -> None:
    grammars = host_of(model).grammars
    schema = {"type": "object", "properties": {"a": {"items": {"uniqueItems": True}}}}
    what = "tool `f` of `tools`"
    with caplog.at_level(logging.WARNING, "sinkstream.structured"):
        for _ in range(2):
            text = json.dumps(lenient(schema))
            followed = grammars.followed_schema(text, option="tools", what=what)
    assert "uniqueItems" not in followed
    assert [record.getMessage() for record in caplog.records] == [
        "tool `f` of `tools`: not enforced, without `strict`: uniqueItems"
    ]
    with pytest.raises(InvalidArgument) as caught:
        grammars.followed_schema(json.dumps(schema), option="tools", what=what)
    assert str(caught.value) == (
        "stream: tool `f` of `tools` (at /properties/a/items) must be valid for llguidance, but is "
        'not: Unimplemented keys: ["uniqueItems"].'
    )
    assert caught.value.param == "tools"


def test_errors_of_a_schema_name_the_path(model: sinkstream.Model) -> None:
    schema = {"type": "array", "items": {"anyOf": [{"type": "null"}, {"not": {}}]}}
    with pytest.raises(InvalidArgument, match=r"`schema` \(at /items/anyOf/1\) must be valid for"):
        model.stream([5], schema=schema)
    for options in (
        {"schema": {"patternProperties": {"^a": {}}, "minProperties": 2}},
        {"grammar": 'start: %json {"minProperties": 2}'},
    ):
        with pytest.raises(InvalidArgument, match="`minProperties` must be at most 1"):
            model.stream([5], **options)  # type: ignore[arg-type]


def test_a_schema_within_a_grammar_is_followed_exactly(model: sinkstream.Model) -> None:
    grammar = 'start: "%json" %json {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5} "!"'
    for seed in range(12):
        text = model.generate(
            [5, seed], grammar=grammar, seed=seed, temperature=1.0, max_tokens=60
        ).text
        if text.endswith("!"):
            assert 0 < float(text.removeprefix("%json")[:-1]) <= 0.5


def test_strict_is_remembered_but_not_shown(model: sinkstream.Model) -> None:
    from sinkstream.request.tools import check_tools

    tools = check_tools([function("f", strict=True), function("g", strict=False)])
    assert tools is not None
    assert tools.strict == {"f"}
    assert "strict" not in tools.key
    assert check_tools(tools.as_given) == tools


def test_a_schema_that_is_not_wanted_any_longer_is_not_tried_to_its_end(
    model: sinkstream.Model,
) -> None:
    """Each of its parts may take two seconds."""
    tried = 0

    def check() -> None:
        nonlocal tried
        tried += 1
        if tried == 2:
            raise TimeoutError

    parts = {name: {"items": {"uniqueItems": True}} for name in "abcdefgh"}
    text = json.dumps({"type": "object", "properties": parts})  # which of them is it?
    with checking(check), pytest.raises(TimeoutError):
        host_of(model).grammars.followed_schema(text, option="tools", what="`f`")
    assert tried == 2
