"""Encodes chat messages through a checkpoint's chat template, which runs in a sandbox.

Only the template writes control tokens. A message may contain the text of one, and a template
may cut, join and trim messages, so searching before or after rendering is not enough. Instead the
rendering says for each character whether it comes from the template or from a message
(`templates/traced_text.py`). If no character of a message is part of a control token, it is encoded
as a whole. Otherwise it is split at the control tokens whose characters all come from the template,
and the pieces in between are encoded as plain text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.errors import InvalidArgument, warn_caller
from sinkstream.text.argument_forms import ArgumentForms
from sinkstream.text.argument_name import PROMPT, ArgumentName
from sinkstream.text.content_forms import ContentForms
from sinkstream.text.messages import ROLES, Message, check_messages, strings_of
from sinkstream.text.plain_text import plain_encoder
from sinkstream.text.templates.chat_template import (
    SANDBOX,
    ChatTemplate,
    compile_template,
    template_error,
)
from sinkstream.text.templates.limits import Limits
from sinkstream.text.templates.passage import Passage, Piece
from sinkstream.text.templates.traced_text import DERIVED, MESSAGE, UNKNOWN, TracedText, traced_data
from sinkstream.text.thinking import Thinking, thinking_variables
from sinkstream.text.tokenizers.control_tokens import Found, control_literals
from sinkstream.text.whole_text import WholeEncoder

TEMPLATE_SECONDS = 2.0  # a hundred times what common templates need for long conversations
_MAX_OWN_CHARACTERS = 1 << 20  # that a template may add to the messages
_MAX_COPIES = 8  # how many copies of a message it may hold at the same time
_FROM_TEMPLATE = re.compile(f"[^{MESSAGE}]+")


def encode_chat(
    text: TextFormat,
    messages: Sequence[Any],
    *,
    add_generation_prompt: bool = True,
    timeout_s: float = TEMPLATE_SECONDS,
    thinking: Thinking = None,
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[int]:
    """Encode a conversation.

    Args:
        text: The checkpoint's tokenizer and template.
        messages: Mappings with `role` (one of `messages.ROLES`) and `content`, a string or a list
            of text parts; None if there are `tool_calls`. It is always plain text, whatever it
            looks like.
        add_generation_prompt: Whether to end with the start of the assistant's reply.
        timeout_s: Seconds after which the template is stopped.
        thinking: Whether the model thinks before it replies, or with which effort. If None, the
            template's default.
        tools: What the model may call, as `check_tools` returns it.

    Returns:
        Token ids. If no message contains control tokens, they equal those of transformers'
        `apply_chat_template`.

    Raises:
        TypeError: `messages` is not a list of mappings, or a value has the wrong type.
        InvalidArgument: There are no messages, a message is malformed, the checkpoint has no
            tokenizer or template, or the template fails or refuses.
    """
    checked = check_messages(messages)
    if text.tokenizer is None or text.chat_template is None:
        lacks = "tokenizer" if text.tokenizer is None else "chat template"
        remedy = "Pass token ids" if text.tokenizer is None else "Pass a string or token ids"
        raise InvalidArgument(
            "stream: `prompt` must not be a list of messages, because the checkpoint has "
            f"no {lacks}. {remedy} instead.",
            param="prompt",
        )
    chat = ChatFormat(text, text.tokenizer, text.chat_template, thinking=thinking, tools=tools)
    ids = chat.whole(checked, add_generation_prompt, timeout_s=timeout_s)
    if omitted := chat.forms.omitted(checked):
        warn_caller(
            f'stream: `prompt` has a message with the role "{omitted}", but the checkpoint\'s chat '
            "template omits it."
        )
    return ids


@dataclass(frozen=True, slots=True)
class _Renderer:
    """Renders conversations. It does not know the format, which would otherwise hold itself."""

    template: ChatTemplate
    source: str
    fixed: Mapping[str, Any]
    """The template's variables that no conversation changes."""

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any],
        add_generation_prompt: bool,
        timeout_s: float,
        argument: ArgumentName,
    ) -> TracedText:
        """Return what the template writes.

        Raises:
            InvalidArgument: The template fails, or refuses the messages.
        """
        variables: dict[str, Any] = {
            **self.fixed,
            "messages": [_traced_message(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
            "tools": traced_data(list(tools), MESSAGE) or None,
            "documents": None,
        }
        size = sum(map(len, strings_of([*messages, *tools])))
        limits = Limits(timeout_s, _MAX_OWN_CHARACTERS + _MAX_COPIES * size)
        try:
            return SANDBOX.run(self.template.template, variables, limits)
        except Exception as error:  # the template's operations may raise anything
            raise template_error(error, self.source, argument) from None


class ChatFormat:
    """A checkpoint's template and tokenizer, ready for any number of conversations."""

    def __init__(
        self,
        text: TextFormat,
        tokenizer: Tokenizer,
        source: str,
        argument: ArgumentName = PROMPT,
        *,
        thinking: Thinking = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Compile the template.

        Args:
            text: The checkpoint's text format.
            tokenizer: Its tokenizer.
            source: Its template.
            argument: The argument that contains the conversation, for errors.
            thinking: Whether the model thinks before it replies, or with which effort.
            tools: What the model may call, as `check_tools` returns it.

        Raises:
            InvalidArgument: The template is too long, has a syntax error, or has no variable for
                `thinking`.
        """
        self.template = compile_template(source, argument)
        variables = thinking_variables(self.template.names, thinking, argument)
        fixed = {**traced_data(text.special_tokens, DERIVED), **traced_data(variables, MESSAGE)}
        renderer = _Renderer(self.template, source, fixed)
        self._render = renderer.render
        self._tools = [dict(tool) for tool in tools]
        self.encoder = plain_encoder(tokenizer)
        self.control = control_literals(tokenizer)
        self._whole = WholeEncoder(tokenizer)
        self.source = source

        def probe(said: Sequence[Message]) -> TracedText:
            return renderer.render(said, [], False, TEMPLATE_SECONDS, argument)

        self.forms = ContentForms(source, probe)
        self.arguments = ArgumentForms(source, probe)

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        *,
        timeout_s: float = TEMPLATE_SECONDS,
        argument: ArgumentName = PROMPT,
    ) -> Passage:
        """Render well-formed messages. Their content stays plain text, whatever it says.

        Raises:
            InvalidArgument: The template fails, or refuses the messages; or it hides which control
                tokens are its own.
        """
        written, found, _ = self._written(messages, add_generation_prompt, timeout_s, argument)
        return self._in_pieces(written, found)

    def whole(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        *,
        timeout_s: float = TEMPLATE_SECONDS,
        argument: ArgumentName = PROMPT,
    ) -> list[int]:
        """Return the ids of well-formed messages, as transformers gives them.

        If part of a message is in a control token, the rendering is encoded in pieces instead.

        Raises:
            CheckpointError: The tokenizer fails on them.
            InvalidArgument: As in `render`.
        """
        written, found, is_spelled = self._written(
            messages, add_generation_prompt, timeout_s, argument
        )
        ids = None if is_spelled else self._whole.encode(written, found, argument)
        if ids is not None:
            return ids
        return self.encode(self._in_pieces(written, found), argument)

    def _in_pieces(self, written: TracedText, found: Sequence[Found]) -> Passage:
        """Split a rendering at its own control tokens."""
        return Passage(tuple(self.control.split(str.__str__(written), found)))

    def _written(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        timeout_s: float,
        argument: ArgumentName,
    ) -> tuple[TracedText, list[Found], bool]:
        """Return a rendering, the template's control tokens, and whether a message spells one."""

        def rendering(said: Sequence[Message], tools: Sequence[Any]) -> TracedText:
            return self._render(said, tools, add_generation_prompt, timeout_s, argument)

        messages = self.arguments.apply(self.forms.apply(messages), argument)
        written = rendering(messages, self._tools)
        found = list(self._own_tokens(written, argument))
        strings = strings_of([*messages, *self._tools])
        spelled = next(filter(None, map(self.control.first_in, strings)), None)
        if spelled is not None:
            # See Note: [Messages that spell control tokens].
            harmless = rendering(
                [_mapped(message, self.control.without) for message in messages],
                _mapped(self._tools, self.control.without),
            )
            expected = list(self._own_tokens(harmless, argument))
            kept = _without_answers(_keys(written, found), _keys(harmless, expected))
            if kept is None:
                raise InvalidArgument(
                    f"{argument} must not contain {spelled!r}, because the checkpoint's chat "
                    "template then writes different control tokens.",
                    param=argument.name,
                )
            found = [found[i] for i in kept]
        return written, found, spelled is not None

    def _own_tokens(self, written: TracedText, argument: ArgumentName) -> Iterable[Found]:
        """Yield the control tokens in a rendering that contain no character of a message."""
        for run in _FROM_TEMPLATE.finditer(written.origins):
            for found in self.control.find(written, run.start(), run.end()):
                if UNKNOWN in written.origins[found.begin : found.end]:
                    literal = str.__str__(written[found.begin : found.end])
                    raise InvalidArgument(
                        f"{argument.call}: with the checkpoint's chat template, it is unclear "
                        f"whether {literal!r} comes from the template or from a message. Pass "
                        "token ids instead.",
                        param=argument.name,
                    )
                yield found

    def encode(self, passage: Passage, argument: ArgumentName = PROMPT) -> list[int]:
        """Return the ids of a part of a rendering."""
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


# Note: [Messages that spell control tokens]
# A template may search messages for a control token's text, and then write the token itself. Such a
# conversation is therefore rendered again, with other letters in place of these texts: only the
# tokens that the template writes in both renderings are control tokens, the others are plain text.
# Tokens are the same if they come from the same places in the template.


def _keys(written: TracedText, found: Iterable[Found]) -> list[tuple[int, str]]:
    return [(match.token_id, written.origins[match.begin : match.end]) for match in found]


def _without_answers(
    found: Sequence[tuple[int, str]], expected: Sequence[tuple[int, str]]
) -> list[int] | None:
    """Return the indices of the expected tokens among those found, or None if that is ambiguous.

    If some of the expected ones are missing, but no others were found, these are all expected.
    """
    if _embedding(expected, found) is not None:
        return list(range(len(found)))
    first = _embedding(found, expected)
    last = _embedding(found[::-1], expected[::-1])
    if first is None or last is None:
        return None
    return first if first == [len(found) - 1 - i for i in reversed(last)] else None


def _embedding(found: Sequence[Any], expected: Sequence[Any]) -> list[int] | None:
    """Return the first indices at which the expected items occur in this order."""
    indices: list[int] = []
    for i, key in enumerate(found):
        if len(indices) < len(expected) and key == expected[len(indices)]:
            indices.append(i)
    return indices if len(indices) == len(expected) else None


def _traced_message(message: Message) -> dict[str, Any]:
    """Return a message in which everything except its role has the message as its origin."""
    said: dict[str, Any] = traced_data(message, MESSAGE)
    return said | {"role": TracedText(message["role"], DERIVED * len(message["role"]))}


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Return data with a function applied to all strings except roles."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            change(name): part if name == "role" and part in ROLES else _mapped(part, change)
            for name, part in value.items()
        }
    return [_mapped(part, change) for part in value] if isinstance(value, list) else value
