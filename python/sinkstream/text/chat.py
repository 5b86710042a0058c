"""Turns chat messages into token ids with the template of the checkpoint.

Only the template can produce control tokens. A message may contain the text of one, and a template
may cut, join and trim messages, so searching before or after rendering is not enough. Instead the
messages are escaped: the characters with which such texts start and end are replaced with
private-use characters that occur nowhere else. Every control token's text in the rendering is then
the template's own. The rendering is split there, the pieces in between are unescaped, and each is
encoded as plain text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import TemplateError, UndefinedError
from tokenizers import Tokenizer

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.errors import InvalidArgument
from sinkstream.text.argument_name import PROMPT, ArgumentName
from sinkstream.text.plain_text import PlainEncoder, check_characters
from sinkstream.text.templates.escaper import Escaper
from sinkstream.text.templates.limits import Limits
from sinkstream.text.templates.passage import Passage, Piece
from sinkstream.text.templates.sandbox import TemplateSandbox
from sinkstream.text.tokenizers.control_tokens import ControlLiterals, control_tokens

ROLES = ("assistant", "system", "tool", "user")
MAX_TEMPLATE_CHARACTERS = 64 << 10
TEMPLATE_SECONDS = 2.0  # a hundred times what common templates need for long conversations
_MAX_OWN_CHARACTERS = 1 << 20  # that a template may add to the messages
_MAX_COPIES = 8  # how many copies of a message it may hold at the same time


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
            string. It is always plain text, whatever it looks like.
        add_generation_prompt: Whether to end with the start of the assistant's reply.
        timeout_s: Seconds after which the template is stopped.

    Returns:
        Token ids. If no content has control tokens, they equal those of transformers'
        `apply_chat_template`.

    Raises:
        TypeError: `messages` is not a list of mappings, or a content is not a string.
        InvalidArgument: There are no messages, a message is malformed, the checkpoint has no
            tokenizer or template, or the template fails or refuses.
    """
    checked = _check_messages(messages)
    if text.tokenizer is None or text.chat_template is None:
        lacks = "tokenizer" if text.tokenizer is None else "chat template"
        remedy = "Give token ids" if text.tokenizer is None else "Give a string or token ids"
        raise InvalidArgument(
            "stream: `prompt` must not be a list of messages. The checkpoint has no "
            f"{lacks}. {remedy} instead.",
            param="prompt",
        )
    chat = ChatFormat(text, text.tokenizer, text.chat_template)
    return chat.encode(chat.render(checked, add_generation_prompt, timeout_s=timeout_s))


class ChatFormat:
    """A checkpoint's template and tokenizer, ready for any number of conversations."""

    def __init__(
        self, text: TextFormat, tokenizer: Tokenizer, source: str, argument: ArgumentName = PROMPT
    ) -> None:
        """Compile the template.

        Args:
            text: The checkpoint's text format.
            tokenizer: Its tokenizer.
            source: Its template.
            argument: The argument that contains the conversation, for errors.

        Raises:
            InvalidArgument: The template is too long, or has a syntax error.
        """
        self.template = compile_template(source, argument)
        self.encoder = PlainEncoder(tokenizer)
        self.control = ControlLiterals(control_tokens(tokenizer))
        self.source = source
        self._special_tokens = text.special_tokens

    def render(
        self,
        messages: Sequence[Mapping[str, str]],
        add_generation_prompt: bool,
        *,
        timeout_s: float = TEMPLATE_SECONDS,
        argument: ArgumentName = PROMPT,
    ) -> Passage:
        """Render well-formed messages. Their contents stay plain text, whatever they say.

        Raises:
            InvalidArgument: The template fails, or refuses the messages.
        """
        escaper = Escaper(
            self.control.literals, self.template.constants, self.source, messages, argument
        )
        variables: dict[str, Any] = {
            **self._special_tokens,
            "messages": [
                {"role": message["role"], "content": escaper.escape(message["content"])}
                for message in messages
            ],
            "add_generation_prompt": add_generation_prompt,
            "tools": None,
            "documents": None,
        }
        size = sum(len(message["content"]) for message in messages)
        limits = Limits(timeout_s, _MAX_OWN_CHARACTERS + _MAX_COPIES * size)
        rendered = _render(self.template, self.source, variables, limits, argument)
        pieces = self.control.split(rendered)
        return Passage(
            tuple(piece if isinstance(piece, int) else escaper.unescape(piece) for piece in pieces)
        )

    def encode(self, passage: Passage, argument: ArgumentName = PROMPT) -> list[int]:
        """Return the ids of a passage of a rendering."""
        ids: list[int] = []
        before, at_start = passage.before, passage.at_start
        for piece in passage.pieces:
            ids += self._encode_piece(piece, before, at_start, argument)
            before, at_start = "", at_start and not ids
        return ids

    def _encode_piece(
        self, piece: Piece, before: str, at_start: bool, argument: ArgumentName
    ) -> list[int]:
        if isinstance(piece, int):
            return [piece]
        if before:
            return self.encoder.encode_after(before, piece, at_start=at_start, argument=argument)
        return self.encoder.encode(piece, at_start=at_start, argument=argument)


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
            f"{where}: `content` must be a string, but is of type {type(content).__name__}."
        )
    check_characters(content, f"{where}: `content`")
    # Templates get plain strings: subclasses may carry methods.
    return {"role": str.__str__(role), "content": str.__str__(content)}


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A compiled template."""

    template: Template
    constants: frozenset[str]
    """The strings in its expressions. It may search messages for some of them."""
    names: frozenset[str]
    """The variables and functions that it refers to."""


_SANDBOX = TemplateSandbox()


@lru_cache(maxsize=16)
def compile_template(source: str, argument: ArgumentName = PROMPT) -> ChatTemplate:
    """Compile a chat template.

    Raises:
        InvalidArgument: It is too long, or has a syntax error.
    """
    if len(source) > MAX_TEMPLATE_CHARACTERS:
        raise InvalidArgument(
            f"{argument.call}: the checkpoint's chat template must have at most "
            f"{MAX_TEMPLATE_CHARACTERS} characters, but has {len(source)}.",
            param=argument.name,
        )
    try:
        tree = _SANDBOX.parse(source)
        constants = {constant.value for constant in tree.find_all(nodes.Const)}
        texts = frozenset(value for value in constants if isinstance(value, str))
        names = frozenset(name.name for name in tree.find_all(nodes.Name))
        return ChatTemplate(_SANDBOX.from_string(tree), texts, names)
    except Exception as error:
        raise _template_error(error, source, argument) from None


def _render(
    template: ChatTemplate,
    source: str,
    variables: Mapping[str, Any],
    limits: Limits,
    argument: ArgumentName,
) -> str:
    try:
        return _SANDBOX.run(template.template, variables, limits)
    except Exception as error:  # the template's operations may raise anything
        raise _template_error(error, source, argument) from None


def _template_error(error: Exception, source: str, argument: ArgumentName) -> InvalidArgument:
    """Return the error of a failed template, without quoting the messages."""
    reason = type(error).__name__
    if isinstance(error, TemplateError) and error.message:
        # Jinja quotes undefined names, which the template may have taken from a message.
        quoted = re.findall(r"'(.*?)'", error.message) if isinstance(error, UndefinedError) else []
        if all(text in source or text.endswith(" object") for text in quoted):
            reason = error.message[:200]
    return InvalidArgument(
        f"{argument.call}: the checkpoint's chat template fails on these messages, or refuses "
        f"them: {reason.rstrip('.')}.",
        param=argument.name,
    )
