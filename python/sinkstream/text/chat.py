"""Turns chat messages into token ids with the template of the checkpoint.

A control token can only come from the template. A message may hold the text of one, and a template
may cut, join and trim messages, so looking for it before or after is not enough. Instead the
letters with which such texts start and end are replaced, inside the messages, by characters that
nobody uses. Then every control token's text in the rendering is the template's own; the rendering
is split there, the letters are put back, and the pieces between are encoded as plain text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import TemplateError, UndefinedError

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.errors import InvalidArgument
from sinkstream.text.control_tokens import ControlLiterals, control_tokens
from sinkstream.text.mask import Mask
from sinkstream.text.plain_text import PlainEncoder, check_characters
from sinkstream.text.sandbox import TemplateSandbox
from sinkstream.text.template_limits import Limits

ROLES = ("assistant", "system", "tool", "user")
MAX_TEMPLATE_CHARACTERS = 64 << 10
TEMPLATE_SECONDS = 2.0  # a hundred times what the templates in use need for long conversations
_MAX_OWN_CHARACTERS = 1 << 20  # what a template may make beside the messages themselves
_MAX_COPIES = 8  # how often it may hold a message's text at the same time


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
    mask = Mask(control.literals, template.constants, text.chat_template, checked)
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
