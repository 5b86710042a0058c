"""Turns chat messages into token ids with the template of the checkpoint.

A control token can only come from the template. A message may hold the text of one, and a template
may cut, join and trim messages, so looking for it before or after is not enough. Instead the
letters with which such texts start and end are replaced, inside the messages, by characters that
nobody uses. Then every control token's text in the rendering is the template's own; the rendering
is split there, the letters are put back, and the pieces between are encoded as plain text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import TemplateError, UndefinedError

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.errors import InvalidArgument
from sinkstream.text.control_tokens import ControlLiterals, control_tokens
from sinkstream.text.plain_text import PlainEncoder, check_characters
from sinkstream.text.sandbox import Limits, TemplateSandbox

ROLES = ("assistant", "system", "tool", "user")
MAX_TEMPLATE_CHARACTERS = 64 << 10
TEMPLATE_SECONDS = 2.0  # a hundred times what the templates in use need for long conversations
_MAX_OWN_CHARACTERS = 1 << 20  # what a template may make beside the messages themselves
_MAX_COPIES = 8  # how often it may hold a message's text at the same time

# The last planes of Unicode are for private use; their characters have neither case nor width, and
# no function of a template changes them.
_PRIVATE = range(0xF0000, 0x10FFFE)


def encode_chat(
    text: TextFormat,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    timeout_s: float = TEMPLATE_SECONDS,
) -> list[int]:
    """Encode a conversation.

    Args:
        text: The checkpoint's tokenizer and template.
        messages: Mappings with `role` ("assistant", "system", "tool" or "user") and `content`, a
            text. What is in a content is plain text, whatever it looks like.
        add_generation_prompt: Whether to end with the start of the assistant's reply.
        timeout_s: Seconds after which a template is stopped.

    Returns:
        Token ids. For contents without control tokens they are those of transformers'
        `apply_chat_template`.

    Raises:
        TypeError: `messages` is no list of mappings, or a content is no text.
        InvalidArgument: There are no messages, a message is malformed, the checkpoint has no
            tokenizer or template, or the template fails or refuses.
    """
    checked = _check_messages(messages)
    if text.tokenizer is None or text.chat_template is None:
        lacks = "tokenizer" if text.tokenizer is None else "chat template"
        remedy = "Give token ids" if text.tokenizer is None else "Give a text or token ids"
        raise InvalidArgument(
            f"stream: `prompt` must not be a list of messages, because the checkpoint has no "
            f"{lacks}. {remedy} instead.",
            param="prompt",
        )
    template = compile_template(text.chat_template)
    control = ControlLiterals(control_tokens(text.tokenizer))
    mask = _Mask(control.literals, template, text.chat_template, checked)
    variables: dict[str, Any] = {
        **text.special_tokens,
        "messages": [
            {"role": message["role"], "content": mask.hide(message["content"])}
            for message in checked
        ],
        "add_generation_prompt": add_generation_prompt,
        "tools": None,
        "documents": None,
    }
    size = sum(len(message["content"]) for message in checked)
    limits = Limits(timeout_s, _MAX_OWN_CHARACTERS + _MAX_COPIES * size)
    encoder = PlainEncoder(text.tokenizer)
    ids: list[int] = []
    for piece in control.split(_render(template, text.chat_template, variables, limits)):
        if isinstance(piece, int):
            ids.append(piece)
        else:
            ids += encoder.encode(mask.reveal(piece), at_start=not ids)
    return ids


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        raise TypeError(
            "stream: `prompt` must be a list of messages, but is of type "
            f"{type(messages).__name__}."
        )
    if not messages:
        raise InvalidArgument("stream: `prompt` must have at least one message.", param="prompt")
    return [_check_message(message, i) for i, message in enumerate(messages)]


def _check_message(message: Mapping[str, Any], index: int) -> dict[str, str]:
    where = f"stream: message {index} of `prompt`"
    if not isinstance(message, Mapping):
        raise TypeError(f"{where} must be a mapping, but is of type {type(message).__name__}.")
    if set(message) != {"role", "content"}:
        names = ", ".join(sorted(f"`{name}`" for name in map(str, message))) or "nothing"
        raise InvalidArgument(
            f"{where} must have `content` and `role` and nothing else, but has {names[:200]}.",
            param="prompt",
        )
    role, content = message["role"], message["content"]
    if not isinstance(role, str) or role not in ROLES:
        shown = repr(role)[:40]
        raise InvalidArgument(
            f"{where}: `role` must be one of {', '.join(ROLES)}, but is {shown}.", param="prompt"
        )
    if not isinstance(content, str):
        raise TypeError(
            f"{where}: `content` must be a text, but is of type {type(content).__name__}."
        )
    check_characters(content, f"{where}: `content`")
    # Subclasses may carry methods; templates get plain texts.
    return {"role": str.__str__(role), "content": str.__str__(content)}


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A template that is ready to be rendered."""

    template: Template
    constants: frozenset[str]
    """The texts that stand in its expressions: with some of them it looks into messages."""


_SANDBOX = TemplateSandbox()


@lru_cache(maxsize=16)
def compile_template(source: str) -> ChatTemplate:
    """Compile a chat template.

    Raises:
        InvalidArgument: It is too long, or its syntax is wrong.
    """
    if len(source) > MAX_TEMPLATE_CHARACTERS:
        raise InvalidArgument(
            f"stream: the checkpoint's chat template must have at most {MAX_TEMPLATE_CHARACTERS} "
            f"characters, but has {len(source)}.",
            param="prompt",
        )
    try:
        tree = _SANDBOX.parse(source)
        constants = {constant.value for constant in tree.find_all(nodes.Const)}
        texts = frozenset(value for value in constants if isinstance(value, str))
        return ChatTemplate(_SANDBOX.from_string(tree), texts)
    except Exception as error:
        raise _template_error(error, source) from None


def _render(
    template: ChatTemplate, source: str, variables: Mapping[str, Any], limits: Limits
) -> str:
    try:
        return _SANDBOX.run(template.template, variables, limits)
    except Exception as error:  # an operation of the template may raise anything
        raise _template_error(error, source) from None


def _template_error(error: Exception, source: str) -> InvalidArgument:
    """Say in a sentence what went wrong in a template, without quoting the messages."""
    reason = type(error).__name__
    if isinstance(error, TemplateError) and error.message:
        # Jinja quotes what it does not find, which the template may have taken from a message.
        quoted = re.findall(r"'(.*?)'", error.message) if isinstance(error, UndefinedError) else []
        if all(text in source or text.endswith(" object") for text in quoted):
            reason = error.message[:200]
    return InvalidArgument(
        "stream: the checkpoint's chat template fails on these messages, or refuses them: "
        f"{reason.rstrip('.')}.",
        param="prompt",
    )


class _Mask:
    """Hides, in messages, the letters with which texts of control tokens start and end.

    Letters stay where they are part of a text that the template itself names (`</think>`, which
    Qwen3's looks for), unless that text could become part of a control token's.
    """

    def __init__(
        self,
        literals: frozenset[str],
        template: ChatTemplate,
        source: str,
        messages: Iterable[Mapping[str, str]],
    ) -> None:
        contents = "".join(message["content"] for message in messages)
        needed = sorted(_outer_letters(literals) & set(contents))
        used = set(contents) | set(source)
        free = (
            letter
            for letter in map(chr, _PRIVATE)
            if letter not in used and _as_json(letter) not in contents
        )
        self._hidden = dict(zip(needed, free, strict=False))
        if len(self._hidden) < len(needed):
            raise InvalidArgument(
                "stream: `prompt` must leave some of Unicode's private characters unused, but "
                "uses all of them.",
                param="prompt",
            )
        kept = "|".join(map(re.escape, _harmless(literals, template.constants))) or "(?!)"
        letters = "".join(map(re.escape, needed))
        self._pattern = re.compile(f"({kept})|[{letters}]") if needed else None
        shown = {hidden: letter for letter, hidden in self._hidden.items()}
        # A template may have written a message as JSON with escapes.
        self._shown = shown | {_as_json(hidden): letter for hidden, letter in shown.items()}
        self._reveal = re.compile("|".join(map(re.escape, self._shown)) or "(?!)")

    def hide(self, content: str) -> str:
        """Return a content in which nothing can become a control token."""
        if self._pattern is None:
            return content
        return self._pattern.sub(lambda found: found[1] or self._hidden[found[0]], content)

    def reveal(self, piece: str) -> str:
        """Return what `hide` and then the template made a piece from."""
        return self._reveal.sub(lambda found: self._shown[found[0]], piece)


def _as_json(letter: str) -> str:
    return json.dumps(letter)[1:-1]


def _outer_letters(literals: Iterable[str]) -> set[str]:
    """Return the letters with which control tokens' texts start and end, leaving spaces aside."""
    stripped = (literal.strip() for literal in literals)
    return {letter for literal in stripped if literal for letter in (literal[0], literal[-1])}


@lru_cache(maxsize=16)
def _harmless(literals: frozenset[str], constants: frozenset[str]) -> list[str]:
    """Return a template's texts with outer letters that no control token's text can grow from."""
    letters = _outer_letters(literals)
    harmless = {
        constant
        for constant in constants
        if letters & set(constant)
        and not any(_touch(constant, literal.strip()) for literal in literals)
    }
    return sorted(harmless, key=len, reverse=True)


def _touch(text: str, literal: str) -> bool:
    """Return whether a text holds, is part of, or may grow into a control token's text."""
    if text in literal or literal in text:
        return True
    lengths = range(1, min(len(text), len(literal)) + 1)
    return any(text[-n:] == literal[:n] or text[:n] == literal[-n:] for n in lengths)
