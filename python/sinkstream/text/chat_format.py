"""Encodes chat messages through a checkpoint's chat template, which runs in a sandbox.

Only the template writes control tokens. A message may contain the text of one, and a template
may cut, join and trim messages, so searching before or after rendering is not enough. Instead the
rendering says for each character whether it comes from the template or from a message
(`templates/traced_text.py`). If no character of a message is part of a control token, it is encoded
as a whole. Otherwise it is split at the control tokens whose characters all come from the template,
and the pieces in between are encoded as plain text.

Note: [Whole and parts]
A whole conversation has the ids that transformers gives it: `encode_whole`. A session that keeps
its cache reads only what follows, so it encodes a part of a rendering: `encode_part`. The two agree
unless the tokenizer joins text across the part's beginning, or changes the text next to a control
token. Then a session cannot have the ids of the whole, because its cache already holds those before
(`turn_format.py` says so), and a stream must not have those of the parts. All else is the
same for both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from tokenizers import AddedToken, Tokenizer

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.errors import InvalidArgument
from sinkstream.request.cancellation import check_wanted
from sinkstream.request.checks import PROMPT, ArgumentName
from sinkstream.request.template_variables import Thinking, template_variables
from sinkstream.text.message_forms import ArgumentForms, ContentForms, check_open, cut, marked
from sinkstream.text.messages import ROLES, Message
from sinkstream.text.plain_text import plain_encoder
from sinkstream.text.templates.chat_template import (
    SANDBOX,
    ChatTemplate,
    Passage,
    Piece,
    compile_template,
    template_error,
)
from sinkstream.text.templates.limits import Limits
from sinkstream.text.templates.traced_text import DERIVED, MESSAGE, UNKNOWN, TracedText, traced_data
from sinkstream.text.tokenizers import catch_panics, encoding_of
from sinkstream.text.tokenizers.control_tokens import (
    WHITESPACE,
    Found,
    control_literals,
    control_tokens,
)
from sinkstream.text.tokenizers.encoding_limit import check_length
from sinkstream.text.tokenizers.vocabulary_kinds import SPACE
from sinkstream.text.tools.generic_form import TemplateReads, generic_messages

TEMPLATE_SECONDS = 2.0  # a hundred times what common templates need for long conversations
_MAX_OWN_CHARACTERS = 1 << 20  # that a template may add to the messages
_MAX_COPIES = 8  # how many copies of a message it may hold at the same time
_FROM_TEMPLATE = re.compile(f"[^{MESSAGE}]+")


class Given(TypedDict):
    """What a request gives the template, apart from messages."""

    tools: list[dict[str, Any]]
    variables: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Renderer:
    """Renders conversations. It does not know the format, which would otherwise hold itself."""

    template: ChatTemplate
    source: str
    special_tokens: Mapping[str, Any]
    """The variables with the texts of special tokens."""

    def render(
        self,
        messages: Sequence[Message],
        given: Given,
        add_generation_prompt: bool,
        argument: ArgumentName,
    ) -> TracedText:
        """Return what the template writes.

        Raises:
            InvalidArgument: The template fails, or refuses the messages.
        """
        variables: dict[str, Any] = {
            "documents": None,
            **self.special_tokens,
            **traced_data(given["variables"], MESSAGE),
            "messages": [_traced_message(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
            "tools": traced_data(given["tools"], MESSAGE) or None,
        }
        size = sum(map(len, strings_of([*messages, given])))
        limits = Limits(TEMPLATE_SECONDS, _MAX_OWN_CHARACTERS + _MAX_COPIES * size)
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
        is_generic: bool = False,
    ) -> None:
        """Compile the template.

        Args:
            text: The checkpoint's text format.
            tokenizer: Its tokenizer.
            source: Its template.
            argument: The argument that contains the conversation, for errors.
            thinking: Whether the model thinks before it replies, or with which effort.
            tools: What the model may call, as `check_tools` returns it.
            is_generic: Whether tools and calls have the generic form, not the template's own.

        Raises:
            InvalidArgument: The template is too long, has a syntax error, or has no variable for
                `thinking`.
        """
        self.template = compile_template(source, argument)
        variables = template_variables(self.template.variables, thinking, argument)
        renderer = _Renderer(self.template, source, traced_data(text.special_tokens, DERIVED))
        self._render = renderer.render
        self._given: Given = {"tools": [dict(tool) for tool in tools], "variables": variables}
        self.encoder = plain_encoder(tokenizer)
        self.control = control_literals(tokenizer)
        self._whole = _WholeEncoder(tokenizer)
        self.source = source

        def probe(said: Sequence[Message]) -> TracedText:
            return renderer.render(said, {**self._given, "tools": []}, False, argument)

        self.forms = forms = ContentForms(source, probe)
        self.arguments = ArgumentForms(source, probe)
        self._is_generic = is_generic
        self._reads = TemplateReads(source, lambda said: probe(forms.apply(said)))

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        *,
        is_open: bool = False,
        argument: ArgumentName = PROMPT,
    ) -> Passage:
        """Render well-formed messages. Their content stays plain text, whatever it says.

        Args:
            messages: The conversation.
            add_generation_prompt: Whether the start of a reply follows it.
            is_open: Whether it ends with the text of the last message, which a reply continues.
            argument: The argument that contains it, for errors.

        Raises:
            InvalidArgument: The template fails, or refuses the messages; or it hides which control
                tokens are its own.
        """
        written, found, _ = self._written(messages, add_generation_prompt, is_open, argument)
        return self._in_pieces(written, found)

    def encode_whole(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        *,
        is_open: bool = False,
        argument: ArgumentName = PROMPT,
    ) -> list[int]:
        """Return the ids of well-formed messages, as transformers gives them; see `render`.

        If part of a message is in a control token, the rendering is encoded in pieces instead.

        Raises:
            CheckpointError: The tokenizer fails on them.
            InvalidArgument: As in `render`.
        """
        written, found, is_spelled = self._written(
            messages, add_generation_prompt, is_open, argument
        )
        ids = None if is_spelled else self._whole.encode(written, found, argument)
        if ids is not None:
            return ids
        return self.encode_part(self._in_pieces(written, found), argument)

    def _in_pieces(self, written: TracedText, found: Sequence[Found]) -> Passage:
        """Split a rendering at its own control tokens."""
        return Passage(tuple(self.control.split(str.__str__(written), found)))

    def _written(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        is_open: bool,
        argument: ArgumentName,
    ) -> tuple[TracedText, list[Found], bool]:
        """Return a rendering, the template's control tokens, and whether a message spells one."""

        def rendering(said: Sequence[Message], given: Given) -> TracedText:
            if not is_open:
                return self._render(said, given, add_generation_prompt, argument)
            return cut(self._render(marked(said), given, False, argument), said, argument)

        if is_open:
            check_open(messages, argument)
        messages, given = self.with_generic_tools(messages)
        messages = self.arguments.apply(self.forms.apply(messages), argument)
        written = rendering(messages, given)
        found = list(self._own_tokens(written, argument))
        strings = strings_of([*messages, given])
        spelled = next(filter(None, map(self.control.first_in, strings)), None)
        if spelled is not None:
            # See Note: [Messages that spell control tokens].
            harmless = rendering(
                [_mapped(message, self.control.without) for message in messages],
                {
                    "tools": [_mapped(tool, self.control.without) for tool in given["tools"]],
                    "variables": {
                        name: _mapped(value, self.control.without)
                        for name, value in given["variables"].items()
                    },
                },
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

    def with_generic_tools(self, messages: Sequence[Message]) -> tuple[Sequence[Message], Given]:
        """Return what the template is given, which may read neither tools nor calls."""
        tools = self._given["tools"]
        without_tools: Given = {**self._given, "tools": []}
        if self._is_generic:
            return generic_messages(messages, tools, self._reads), without_tools
        may_lack_calls = not tools and any("tool_calls" in one for one in messages)
        if may_lack_calls and not self._reads.has_calls:
            return generic_messages(messages, (), self._reads), without_tools
        return messages, self._given

    def omitted(self, messages: Sequence[Message]) -> str | None:
        """Return a role whose messages the template leaves out without refusing them, if any."""
        return self.forms.omitted(self.with_generic_tools(messages)[0])

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

    def encode_part(self, passage: Passage, argument: ArgumentName = PROMPT) -> list[int]:
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


def strings_of(value: Any) -> Iterator[str]:
    """Yield all strings in messages, except roles."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from strings_of(name)
            if name != "role" or part not in ROLES:
                yield from strings_of(part)
    elif isinstance(value, list):
        for part in value:
            yield from strings_of(part)


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


class _WholeEncoder:
    """A tokenizer whose control tokens only the template may write.

    The tokenizer itself decides where a control token matches, and what it does to the text next to
    it: it may absorb whitespace, or keep a word from matching. That is allowed only as long as no
    character of a message is part of a control token.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # The unknown token is allowed anywhere: it stands for characters that the vocabulary lacks.
        unknown = getattr(tokenizer.model, "unk_token", None)
        self._control = {
            token_id: token
            for token_id, token in control_tokens(tokenizer).items()
            if token.content != unknown
        }

    def encode(
        self, written: TracedText, found: Iterable[Found], argument: ArgumentName
    ) -> list[int] | None:
        """Encode a rendering; return None if part of a message is in one of its control tokens.

        Args:
            written: The rendering.
            found: The control tokens that the template has written.
            argument: The argument that contains the conversation, for errors.

        Raises:
            CheckpointError: The tokenizer fails on it.
        """
        check_wanted()
        text = str.__str__(written)
        fails = f"{argument.call}: the checkpoint's tokenizer fails on `{argument.name}`"
        check_length(self._tokenizer, text, argument)
        with catch_panics(fails):
            encoding = encoding_of(self._tokenizer, text, has_offsets=True)
        ids: list[int] = encoding.ids
        control = [i for i, token_id in enumerate(ids) if token_id in self._control]
        for i in control:
            # One by one: a list of all offsets is made in one call, which holds the GIL.
            begin, end = encoding.token_to_chars(i) or (0, 0)
            begin, end = _literal(text, begin, end, self._control[ids[i]])
            origins = written.origins[begin:end]
            if not origins or MESSAGE in origins or UNKNOWN in origins:
                return None
        # The offsets of a token that matches in the normalized text are less certain.
        known = iter(match.token_id for match in found)
        normalized = (ids[i] for i in control if self._control[ids[i]].normalized)
        return ids if all(token_id in known for token_id in normalized) else None


def _literal(text: str, begin: int, end: int, token: AddedToken) -> tuple[int, int]:
    """Return where a token's own text is, without the whitespace that it has absorbed."""
    own = token.content
    if own[:1] in WHITESPACE or own[-1:] in WHITESPACE:
        return begin, end  # it is uncertain which whitespace is the token's own
    # See Note: [Spaces that normalization adds] of control_tokens.py.
    if token.normalized and text[begin:end].strip(WHITESPACE + SPACE) == own:
        begin = text.index(own, begin)
        return begin, begin + len(own)
    while token.lstrip and begin < end and text[begin] in WHITESPACE:
        begin += 1
    while token.rstrip and begin < end and text[end - 1] in WHITESPACE:
        end -= 1
    return begin, end
