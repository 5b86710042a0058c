"""Random conversations, rendered here and by transformers.

`python -m tests.python.text.template_fuzz --cases 10000 --templates FOLDER` renders that many, with
the templates of this folder and with those in FOLDER (`*.jinja`).
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from sinkstream.errors import InvalidArgument
from sinkstream.text.chat import ChatFormat
from sinkstream.text.messages import check_messages
from tests.python.text import vocabularies
from tests.python.text.expressions import BLOCKS, EXPRESSIONS
from tests.python.text.vocabularies import special

Messages = list[dict[str, Any]]

UNDECIDED = "undecided"
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


@lru_cache(maxsize=256)
def chat_of(source: str) -> ChatFormat:
    """Return a template with a vocabulary in which all these texts are control tokens."""
    text = dataclasses.replace(vocabularies.qwen3(), chat_template=source)
    assert text.tokenizer is not None
    tokenizer = Tokenizer.from_str(text.tokenizer.to_str())
    tokenizer.add_special_tokens(special(*literals_of(source)))
    return ChatFormat(text, tokenizer, source)


def theirs(source: str, messages: Messages) -> str | None:
    """Return transformers' rendering, or None if the template fails."""
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        rendered, _ = render_jinja_template(
            [messages],
            chat_template=source,
            add_generation_prompt=True,
            **vocabularies.qwen3().special_tokens,
        )
    except Exception:  # the template's operations may raise anything
        return None
    return str(rendered[0])


def ours(source: str, messages: Messages) -> tuple[str | None, list[str]]:
    """Return what a template writes here, and its control tokens."""
    chat = chat_of(source)
    try:
        pieces = chat.render(check_messages(messages), True).pieces
    except InvalidArgument as error:
        undecided = "it is unclear whether" in str(error) or "different control" in str(error)
        return (UNDECIDED if undecided else None), []
    shown = [chat.control.literal(piece) if isinstance(piece, int) else piece for piece in pieces]
    return "".join(shown), [
        text for text, piece in zip(shown, pieces, strict=True) if isinstance(piece, int)
    ]


def draw_messages(draw: random.Random, source: str) -> Messages:
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
    return messages


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


def difference(source: str, messages: Messages) -> str:
    """Return how a rendering differs from transformers', or "" if it does not."""
    text, control = ours(source, messages)
    if text == UNDECIDED:
        return ""
    # Where a template does not write calls, both get them as text.
    messages = list(map(dict, chat_of(source).with_generic_tools(messages)[0]))
    expected = theirs(source, messages)
    if text != expected:
        return f"text {text!r}, not {expected!r}"
    literals = [*literals_of(source), "<|endoftext|>"]
    plain = theirs(source, harmless(messages, literals))
    if expected is not None and plain is not None and source not in EXPRESSION_SOURCES:
        pattern = "|".join(map(re.escape, sorted(literals, key=len, reverse=True)))
        own = re.findall(pattern, plain)
        rest = iter(own)  # a template may omit tokens because of what a message says
        if not all(token in rest for token in control):
            return f"control tokens {control}, not {own}"
    return ""


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
    for case in range(options.seed, options.seed + options.cases):
        name = names[case % len(names)]
        messages = draw_messages(random.Random(case), sources[name])
        if said := difference(sources[name], messages):
            counts["different"] += 1
            print(f"case {case}, {name[:60]}: {said}\n  {messages}")
            continue
        text, _ = ours(sources[name], messages)
        kind = {None: "refused", UNDECIDED: "undecided"}.get(text, "equal")
        counts[kind] += 1
    print(f"{len(names)} templates: {counts}")
    return int(counts["different"] > 0)


if __name__ == "__main__":
    sys.exit(main())
