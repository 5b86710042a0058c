"""Grammars in GBNF, llama.cpp's format: the same replies as in Lark, or a one-sentence error."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

import sinkstream
from sinkstream import InvalidArgument
from sinkstream.structured.grammars import MAX_GBNF_BYTES, as_lark

PROMPT = [5, 9, 17]
LIST = r"""
# An optional list, as in llama.cpp's examples.
root  ::= "[" (item ("," item)*)? "]" end
item  ::= two-digits | [a-c]{2,3} | "\"" [^"\\\x00-\x1f]? "\""
two-digits ::= [0-9] [0-9]
end ::= "\n"
"""
MATCHES = re.compile(r"\[(ITEM(,ITEM)*)?\]\n".replace("ITEM", r'([0-9]{2}|[a-c]{2,3}|"[^"\\]?")'))
BAD = [
    ("root ::= (", "Expected ')'"),
    ('root ::= "a', "Unexpected end of input"),
    ("root ::= other", "Rule 'other' not found"),
    ('root ::= "\\q"', "Invalid escape sequence"),
    ("root ::= " + "(" * 2000 + '"a"' + ")" * 2000, "recursion"),
    ('root ::= "a"{', "Expected integer"),
    ('root ::= "a\\', "index out of range"),
]


@pytest.mark.parametrize("seed", range(6))
def test_a_reply_follows_gbnf(model: sinkstream.Model, seed: int) -> None:
    options: dict[str, Any] = {"temperature": 1.0, "max_tokens": 3000, "seed": seed}
    result = model.generate(PROMPT, grammar=LIST, **options)
    assert result.finish_reason == "stop"
    assert MATCHES.fullmatch(result.text), result.text
    assert model.generate(PROMPT, grammar=as_lark(LIST), **options).text == result.text


@pytest.mark.parametrize("text", ['start: "root ::= a"', "start: a\na: /::=/", 'start: "a"'])
def test_lark_stays_as_it_is(text: str) -> None:
    assert as_lark(text) == text


@pytest.mark.parametrize(("text", "reason"), BAD, ids=range(len(BAD)))
def test_bad_gbnf_is_refused_with_a_sentence(
    model: sinkstream.Model, text: str, reason: str
) -> None:
    with pytest.raises(InvalidArgument) as info:
        model.generate(PROMPT, grammar=text, max_tokens=5)
    assert info.value.param == "grammar"
    assert str(info.value).startswith("stream: `grammar` must be valid GBNF, but is not: ")
    assert reason in str(info.value)


def test_long_gbnf_is_refused_and_the_longest_is_not_slow() -> None:
    with pytest.raises(
        InvalidArgument, match=f"at most {MAX_GBNF_BYTES} bytes, but has {MAX_GBNF_BYTES + 1}"
    ):
        as_lark('root ::= "' + "a" * (MAX_GBNF_BYTES - 10) + '"')
    # In this order, the converter needs a pass for each rule.
    rules, count = ["root ::= a0"], 0
    while len("\n".join(rules)) < MAX_GBNF_BYTES - 40:
        rules.append(f"a{count} ::= a{count + 1}")
        count += 1
    rules.append(f'a{count} ::= "a"')
    begun = time.process_time()
    as_lark("\n".join(rules))
    assert time.process_time() - begun < 10
