"""Random conversations, rendered here and by transformers' `apply_chat_template`.

Some have tools, variables of the template, or a last message that the reply continues.

`python -m tests.python.text.template_fuzz --cases 10000 --templates FOLDER` renders that many, with
the templates of this folder and with those in FOLDER (`*.jinja`).
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from sinkstream.errors import InvalidArgument
from sinkstream.request.template_variables import OWN_FIELDS, with_variables
from sinkstream.text.chat_format import ChatFormat
from sinkstream.text.messages import check_messages
from sinkstream.text.templates.chat_template import compile_template
from tests.python.text import vocabularies
from tests.python.text.expressions import BLOCKS, EXPRESSIONS
from tests.python.text.vocabularies import special

Messages = list[dict[str, Any]]

UNDECIDED = "undecided"
OPEN = "to be continued"
# What control tokens look like in templates.
_LITERAL = re.compile(r"<\|?[\w/. :-]{2,40}\|?>|\[/?[A-Z_]{3,30}\]|<｜[^｜<>]{1,40}｜>")
_WORDS = (
    "", " ", "\n", "\n\n", "word", "a < b > c", "<", ">", "|", "&amp;", "<b>x</b>", "'", '"', "\\",
    "é", "日本", "🎉", "ß", "İ", "Σ", "\u2028", "\r\n", "\t", "\x00", "\ue000", "\U000f0000",
    "{{ messages }}", "{% raw %}", "{# x #}", "%s", "%(a)s", "{}", "{0}", "1", "-3.5", "null",
    "</think>", "<think>", "<tool_response>", "</tool_response>", "/no_think", "/think",
    "```json\n{}\n```", "<|im_", "im_end|>", "Placeholder0a", "\\udb80\\udc00",
)  # fmt: skip


def literals_of(source: str) -> list[str]:
    """Return the texts in a template that look like control tokens."""
    return sorted({*_LITERAL.findall(source), "<|im_start|>", "<|im_end|>"})


@dataclass(frozen=True)
class Case:
    """A conversation, and what else a request gives the template."""

    messages: Messages
    tools: list[dict[str, Any]] = field(default_factory=list)
    variables: dict[str, Any] = field(default_factory=dict)
    is_open: bool = False
    """Whether the reply continues the last message."""


@lru_cache(maxsize=4)
def tokenizer_of(source: str, plain: frozenset[str] = frozenset()) -> Tokenizer:
    """Return a vocabulary in which what looks like control tokens is one, unless it is `plain`."""
    tokenizer = vocabularies.qwen3().tokenizer
    assert tokenizer is not None
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.add_special_tokens(special(*sorted({*literals_of(source)} - plain)))
    return tokenizer


@lru_cache(maxsize=1)
def oracle() -> Any:
    """Return a tokenizer of transformers."""
    from transformers import PreTrainedTokenizerFast

    text = vocabularies.qwen3()
    return PreTrainedTokenizerFast(tokenizer_object=text.tokenizer, **text.special_tokens)


def theirs(source: str, case: Case) -> str | None:
    """Return transformers' rendering, or None if the template fails.

    Some templates read the arguments of calls only as JSON text, some read a content that is not
    there.
    """
    filled = [{**message, "content": message.get("content") or ""} for message in case.messages]
    variants = (change(said) for said in (case.messages, filled) for change in (list, _with_text))
    written = (_theirs(source, case, said) for said in variants)
    return next((text for text in written if text is not None), None)


def _with_text(value: Any) -> Any:
    """Return messages in which the arguments of calls are JSON text."""
    if isinstance(value, list):
        return [_with_text(part) for part in value]
    if not isinstance(value, dict):
        return value
    shown = {"arguments": json.dumps(value.get("arguments"), ensure_ascii=False)}
    changed = {name: _with_text(part) for name, part in value.items()}
    return changed | shown if "arguments" in value and "name" in value else changed


def _theirs(source: str, case: Case, messages: Messages) -> str | None:
    try:
        rendered = oracle().apply_chat_template(
            messages,
            tools=case.tools or None,
            chat_template=source,
            add_generation_prompt=not case.is_open,
            continue_final_message=case.is_open,
            tokenize=False,
            **case.variables,
        )
    except Exception:  # the template's operations may raise anything
        return None
    return str(rendered)


def chat_of(source: str, case: Case) -> ChatFormat:
    thinking = with_variables(None, case.variables, "stream")
    tokenizer = tokenizer_of(source)
    return ChatFormat(vocabularies.qwen3(), tokenizer, source, thinking=thinking, tools=case.tools)


def ours(source: str, case: Case) -> tuple[str | None, list[str]]:
    """Return what a template writes here, and its control tokens."""
    try:
        chat = chat_of(source, case)
        pieces = chat.render(check_messages(case.messages), True, is_open=case.is_open).pieces
    except InvalidArgument as error:
        if OPEN in str(error):
            return OPEN, []
        undecided = "it is unclear whether" in str(error) or "different control" in str(error)
        return (UNDECIDED if undecided else None), []
    shown = [chat.control.literal(piece) if isinstance(piece, int) else piece for piece in pieces]
    return "".join(shown), [
        text for text, piece in zip(shown, pieces, strict=True) if isinstance(piece, int)
    ]


def draw_case(draw: random.Random, source: str) -> Case:
    """Draw a conversation; some of its contents have the texts of the template's own tokens."""
    words = [*_WORDS, *literals_of(source), *re.findall(r"'([^'\n]{1,20})'", source)]

    def content() -> str:
        return "".join(draw.choice(words) for _ in range(draw.choice((0, 1, 1, 2, 3, 5))))

    messages: Messages = []
    if draw.random() < 0.5:
        messages.append({"role": draw.choice(("system", "system", "developer"))})
    for _ in range(draw.randint(1, 3)):
        messages.append({"role": "user"})
        if draw.random() < 0.3:
            call = {"name": content(), "arguments": {content(): draw.choice((content(), 1, None))}}
            calls = [{"id": "call_1", "type": "function", "function": call}]
            empty = draw.choice((None, "", content()))
            messages.append({"role": "assistant", "content": empty, "tool_calls": calls})
            messages.append({"role": "tool", "tool_call_id": "call_1", "name": content()})
        if draw.random() < 0.7:
            messages.append({"role": "assistant"})
            if draw.random() < 0.2:
                messages[-1]["reasoning_content"] = content()
    for message in messages:
        message.setdefault("content", content())
    is_open = draw.random() < 0.3
    if is_open and messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": content()})
    tools = [_tool(f"tool{i}", content()) for i in range(draw.choice((0, 0, 0, 1, 2)))]
    read = compile_template(source).variables
    names = sorted(read - {"documents", *OWN_FIELDS})
    drawn = draw.sample(names, min(len(names), draw.choice((0, 0, 1, 2))))
    variables: dict[str, Any] = {
        name: draw.choice((True, False, None, 1, "low", content(), [content()])) for name in drawn
    }
    if "documents" in read and draw.random() < 0.3:
        variables["documents"] = [{"title": content(), "text": content()}]
    return Case(messages, tools, variables, is_open)


def _tool(name: str, description: str) -> dict[str, Any]:
    properties = {"a": {"type": "string", "description": description}, "b": {"type": "integer"}}
    parameters = {"type": "object", "properties": properties, "required": ["a"]}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def harmless(value: Any, literals: Sequence[str]) -> Any:
    """Return data in which no string spells a control token."""
    if isinstance(value, dict):
        return {harmless(k, literals): harmless(part, literals) for k, part in value.items()}
    if isinstance(value, list):
        return [harmless(part, literals) for part in value]
    if isinstance(value, str):
        longest_first = sorted(literals, key=len, reverse=True)
        pattern = "|".join(map(re.escape, longest_first))
        return re.sub(pattern, lambda found: re.sub(r"\S", "x", found[0]), value)
    return value


def difference(source: str, case: Case) -> tuple[str, str]:
    """Return how a rendering differs from transformers', or ""; and its kind."""
    text, control = ours(source, case)
    if text == UNDECIDED:
        return "", "undecided"
    # Where a template does not write calls, both get them as text.
    with suppress(InvalidArgument):  # of variables that the template does not read
        read, _ = chat_of(source, case).with_generic_tools(case.messages)
        case = replace(case, messages=list(map(dict, read)))
    expected = theirs(source, case)
    if case.is_open and "content" not in source:
        return "", "refused"  # transformers looks for the word
    last = case.messages[-1]
    if text == OPEN and not last.get("tool_calls") and expected is not None:
        # Transformers finds the text somewhere, and cuts after something else.
        text = None if expected.rstrip().endswith((last["content"] or "").strip()) else expected
    elif text == OPEN:
        return "", "refused"
    if text != expected:
        return f"text {text!r}, not {expected!r}", "different"
    if expected is None:
        return "", "refused"
    literals = [*literals_of(source), "<|endoftext|>"]
    plain = theirs(source, Case(**harmless(vars(case), literals)))
    if expected is not None and plain is not None and source not in EXPRESSION_SOURCES:
        pattern = "|".join(map(re.escape, sorted(literals, key=len, reverse=True)))
        own = re.findall(pattern, plain)
        rest = iter(own)  # a template may omit tokens because of what a message says
        if not all(token in rest for token in control):
            return f"control tokens {control}, not {own}", "different"
    return "", "equal"


EXPRESSION_SOURCES = [f"{{{{ {expression} }}}}" for expression in EXPRESSIONS] + BLOCKS


def main(arguments: Sequence[str] | None = None) -> int:
    """Render random conversations; return 1 if one differs."""
    from tests.python.text.templates import TEMPLATES

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--templates", type=Path)
    options = parser.parse_args(arguments)
    sources = {**TEMPLATES, **{source: source for source in EXPRESSION_SOURCES}}
    if options.templates is not None:
        files = sorted(options.templates.rglob("*.jinja"))
        sources |= {file.name: file.read_text(encoding="utf-8") for file in files}
    names = sorted(sources)
    counts = {"equal": 0, "refused": 0, "undecided": 0, "different": 0}
    for number in range(options.seed, options.seed + options.cases):
        # Those of one template follow each other: only a few are kept compiled.
        name = names[(number - options.seed) * len(names) // options.cases]
        case = draw_case(random.Random(number), sources[name])
        said, kind = difference(sources[name], case)
        counts[kind] += 1
        if said:
            print(f"case {number}, {name[:60]}: {said}\n  {case}")
    print(f"{len(names)} templates: {counts}")
    return int(counts["different"] > 0)


if __name__ == "__main__":
    sys.exit(main())
