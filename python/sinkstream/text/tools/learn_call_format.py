"""Finds how a chat template writes tool calls, by rendering short conversations that have some.

What the template writes between the generation prompt, the name, the arguments and the reply's end
token is the form in which the model has learned to call. No template is known by name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.errors import InvalidArgument
from sinkstream.request.template_variables import Thinking
from sinkstream.text.channels import channels_of
from sinkstream.text.chat_format import ChatFormat
from sinkstream.text.marked_text import ThoughtFormat
from sinkstream.text.messages import TEXT
from sinkstream.text.template_turns import as_message, placeholders
from sinkstream.text.templates.chat_template import Passage, common_prefix
from sinkstream.text.tokenizers.control_tokens import control_tokens
from sinkstream.text.tools.call_format import FIRST_MARKER, ID_MARK, NAME_LETTERS, CallFormat

# A tool as good as any: a template may look up the one that is called.
_NAME = "placeholder_tool"
_KEY = "placeholder_key"
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Placeholder description.",
        "parameters": {
            "type": "object",
            "properties": {_KEY: {"type": "string", "description": "Placeholder description."}},
            "required": [_KEY],
        },
    },
}
# Models write it before the type of what a message on a channel has, though no template does.
_KIND = "<|constrain|>"
# Templates that check ids want Mistral's: nine letters and digits.
_LONG_IDS = ("call_placeholder0", "call_placeholder1", "call_placeholder2")
_SHORT_IDS = ("plchldr00", "plchldr01", "plchldr02")
# What a first call may begin with: a tag in brackets, or one that the name completes.
_TAG = re.compile(r"<[^<>\s\"]+>|\[[^\[\]\s\"]+\]|<[^<>\s\"]+$")
# A thought whose tags are unknown: they would be taken for a part of the call.
_THOUGHT = re.compile("think|thought|reason", re.IGNORECASE)
_NO_TOOLS = "has no place for tools"
_UNKNOWN = "writes tool calls in a form that is not supported"


def learn_call_format(
    text: TextFormat, thinking: Thinking = None, thoughts: ThoughtFormat | None = None
) -> CallFormat:
    """Return how a checkpoint's model calls tools.

    Args:
        text: The checkpoint's tokenizer and template.
        thinking: As for `ChatFormat`.
        thoughts: The tags around thoughts, if the model has thoughts.

    Raises:
        InvalidArgument: There is no chat template, it has no place for tools, or it writes calls in
            a form that cannot be read: not as JSON arguments after a name.
    """
    if text.tokenizer is None or text.chat_template is None:
        raise InvalidArgument(
            "stream: `tools` must be empty: the checkpoint has no chat template.", param="tools"
        )
    chat = ChatFormat(
        text, text.tokenizer, text.chat_template, TEXT, thinking=thinking, tools=(_TOOL,)
    )
    try:
        probe = _Probe(chat, text.end_token_ids, thoughts)
    except InvalidArgument:
        raise _refused(_NO_TOOLS) from None
    if not probe.shows_tools:
        raise _refused(_NO_TOOLS)
    for ids in (_LONG_IDS, _SHORT_IDS):
        one = probe.written(ids[:1])
        if one is not None and has_channels(thoughts):
            tokens = control_tokens(text.tokenizer).items()
            kind = next((i for i, token in tokens if token.content == _KIND), None)
            return probe.form_in_channels(one, kind)
        if one is not None:
            return probe.form(one, ids)
    raise _refused(_UNKNOWN)


def has_channels(thoughts: ThoughtFormat | None) -> bool:
    """Return whether what precedes a call depends on the thought."""
    return thoughts is not None and bool(thoughts.answer)


def _refused(fault: str) -> InvalidArgument:
    return InvalidArgument(
        f"stream: `tools` must be empty: the checkpoint's chat template {fault}.", param="tools"
    )


@dataclass(frozen=True, slots=True)
class _Written:
    """A reply with calls, as marked text."""

    begin: str
    middle: str
    betweens: tuple[str, ...]
    end: str


class _Probe:
    """Renders replies with calls."""

    def __init__(
        self, chat: ChatFormat, end_token_ids: frozenset[int], thoughts: ThoughtFormat | None
    ) -> None:
        self._chat = chat
        self._thoughts = thoughts
        self._question, self._value, self._answer, reply = placeholders(chat, "")
        self._markers: dict[int, str] = {}
        user = as_message("user", self._question)
        prompt = chat.render([user], True, argument=TEXT)
        self.shows_tools = _NAME in self._marked(prompt)
        said = [user, as_message("assistant", reply), as_message("user", self._answer)]
        asked = prompt.after(self._question)
        later = chat.render(said, False, argument=TEXT).after(self._question)
        if asked is None or later is None:
            raise _refused(_NO_TOOLS)  # it omits messages
        header = Passage(common_prefix(asked.pieces, later.pieces))
        self._header = self._marked(header)
        # What ends a message and begins the next one.
        self._between_turns = set(self._marked(asked)) & set(self._markers.values())
        self._ends = {self._mark(token_id) for token_id in end_token_ids}

    def _mark(self, token_id: int) -> str:
        return self._markers.setdefault(token_id, chr(FIRST_MARKER + len(self._markers)))

    def _marked(self, passage: Passage) -> str:
        return "".join(
            piece if isinstance(piece, str) else self._mark(piece) for piece in passage.pieces
        )

    def _literal(self, marked: str) -> str:
        for token_id, mark in self._markers.items():
            if mark in marked:
                marked = marked.replace(mark, self._chat.control.literal(token_id))
        return marked

    def written(self, ids: Sequence[str]) -> _Written | None:
        """Return a reply with as many calls as there are ids; None if it cannot be read."""
        calls = [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": _NAME, "arguments": {_KEY: f"{self._value}{i}"}},
            }
            for i, call_id in enumerate(ids)
        ]
        user = as_message("user", self._question)
        reply = {"role": "assistant", "content": "", "tool_calls": calls}
        results = [
            {"role": "tool", "content": self._answer, "tool_call_id": call_id, "name": _NAME}
            for call_id in ids
        ]
        for following in (results, []):
            try:
                rendering = self._chat.render([user, reply, *following], False, argument=TEXT)
            except InvalidArgument:
                continue
            passage = rendering.after(self._question)
            found = None if passage is None else self._split(self._marked(passage), ids)
            if found is not None:
                return found
        return None

    def _split(self, marked: str, ids: Sequence[str]) -> _Written | None:
        header, text = self._header.strip(), marked.lstrip()
        if not text.startswith(header):
            return None  # calls are not in a reply
        text = text[len(header) :]
        if self._thoughts is not None and self._thoughts.end in text.partition(_NAME)[0]:
            text = text.partition(self._thoughts.end)[2]  # an empty thought
        parts: list[str] = []
        for i in range(len(ids)):
            before, name, rest = text.partition(_NAME)
            value = re.escape(f"{self._value}{i}")
            found = re.search(rf'\{{\s*"{_KEY}"\s*:\s*"{value}"\s*\}}', rest)
            if not name or found is None:
                return None
            parts += [before, rest[: found.start()]]
            text = rest[found.end() :]
        end = min((text.find(mark) for mark in self._ends if mark in text), default=-1)
        if end < 0 or self._answer in text[:end]:
            return None  # nothing says where the reply ends
        parts = [_with_id_marks(part, ids) for part in (*parts, text[:end])]
        if self._between_turns & set("".join(parts)):
            return None  # there is a second message
        begin, end_text, middles = parts[0].lstrip(), parts[-1].rstrip(), set(parts[1::2])
        middle = parts[1]
        is_known = len(middles) == 1 and ID_MARK not in begin and middle[:1] not in NAME_LETTERS
        if not begin or not is_known or _THOUGHT.search(self._literal(begin)):
            return None
        return _Written(begin, middle, tuple(parts[2:-1:2]), end_text)

    def form_in_channels(self, one: _Written, kind: int | None) -> CallFormat:
        """Return the form of a call that is a message on a channel.

        Args:
            one: A reply with a call.
            kind: The token before the type of what the message has, if there is one.

        Raises:
            InvalidArgument: It is written in another way.
        """
        thoughts = self._thoughts
        channels = None if thoughts is None else channels_of(thoughts)
        if thoughts is None or channels is None:
            raise _refused(_UNKNOWN)
        middle = one.middle
        for token_id, mark in thoughts.markers.items():
            middle = middle.replace(self._markers.get(token_id, mark), mark)
        is_header = middle.startswith(channels.name) and middle.endswith(channels.body)
        if not is_header or not one.begin.endswith(".") or one.end or middle.count(" ") != 1:
            raise _refused(_UNKNOWN)
        return CallFormat(
            trigger=middle[: middle.index(" ") + 1],
            is_bare=False,
            begin=one.begin,
            middle=middle,
            between=None,
            end="",
            markers={} if kind is None else {kind: chr(FIRST_MARKER)},
            has_short_ids=False,
            channels=channels,
        )

    def form(self, one: _Written, ids: Sequence[str]) -> CallFormat:
        """Return the form that a reply with one call follows.

        Raises:
            InvalidArgument: Nothing distinguishes a call from text.
        """
        several = self.written(ids)
        between = None
        if several is not None and len(set(several.betweens)) == 1:
            alone = (several.begin, several.middle, several.end)
            if alone == (one.begin, one.middle, one.end):
                between = several.betweens[0]
        tag = _TAG.match(one.begin)
        if one.begin[0] in self._markers.values():
            trigger = one.begin[0]
        elif tag is not None:
            trigger = tag[0]
        elif one.begin[0] in "{[":
            trigger = one.begin
        else:
            raise _refused(_UNKNOWN)
        used = "".join((one.begin, one.middle, between or "", one.end))
        return CallFormat(
            trigger=trigger,
            is_bare=one.begin[0] in "{[" and tag is None,
            begin=one.begin,
            middle=one.middle,
            between=between,
            end=one.end,
            markers={i: mark for i, mark in self._markers.items() if mark in used},
            has_short_ids=ids is _SHORT_IDS,
        )


def _with_id_marks(text: str, ids: Sequence[str]) -> str:
    for call_id in ids:
        text = text.replace(call_id, ID_MARK)
    return text
