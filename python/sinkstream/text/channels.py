"""Replies of messages on channels, of which one is for thoughts and one for the text (harmony).

    ⟨channel⟩analysis⟨message⟩ … ⟨end⟩⟨start⟩assistant⟨channel⟩final⟨message⟩ …
    header                     body next              header                  body

A header may name the tool that its message is for: `to=functions.NAME`, before or after the name of
the channel. Any other message is text that the user sees. What ends a reply is no part of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from sinkstream.text.marked_text import MAX_SPACES, Kind, MarkedSplitter, Parts, ThoughtFormat
from sinkstream.text.messages import ToolCall

_GAP = "\n\n"
"""Between two messages of the same kind."""


@dataclass(frozen=True, slots=True)
class Channels:
    """The parts of headers, as marked text: all but names are markers of control tokens."""

    name: str
    """Before the name of a channel."""
    body: str
    """Between a header and its message."""
    end: str
    """After a message that another one follows."""
    start: str
    """Between that and the header of the next message."""
    thought: str
    """The name of the channel for thoughts."""
    answer: str
    """The name of the channel for the text."""


def channels_of(form: ThoughtFormat) -> Channels | None:
    """Return the channels of a format; None if its thoughts are not messages on a channel."""
    markers = frozenset(form.markers.values())
    if not form.answer or not form.end.endswith(form.answer):
        return None
    between = form.end.removesuffix(form.answer)
    name, body = form.begin[:1], form.begin[-1:]
    if {name, body, between[:1]} - markers or (form.answer[:1], form.answer[-1:]) != (name, body):
        return None
    return Channels(name, body, between[0], between[1:], form.begin[1:-1], form.answer[1:-1])


def new_call_id() -> str:
    """Return an id for a call."""
    import secrets  # it loads OpenSSL, which replies without calls do not need

    return "call_" + secrets.token_hex(12)


class ChannelSplitter(MarkedSplitter):
    """Splits one reply into thoughts, text and calls.

    However the text is cut into pieces, the result is the same. A message for a tool is a call if
    the reply may have calls, otherwise a thought. A reply that does not begin with a header is
    text.
    """

    def __init__(self, form: ThoughtFormat, channels: Channels, recipient: str = "") -> None:
        """Split a reply; `recipient` is what precedes the name of a tool, if it may have calls."""
        super().__init__(form.shown)
        self.calls: list[ToolCall] = []
        """The calls that have begun."""
        self._channels = channels
        self._recipient = recipient
        self._kind: Kind = "thought" if form.start == "thought" else "text"
        self._state: Literal["first", "header", "body"] = "body"
        if form.start == "before":
            self._state = "first"
        self._given: set[Kind] = set()
        self._is_first = True  # nothing of the message has been given

    @property
    def kind(self) -> Kind:
        """Return what the next text is, as far as known."""
        return self._kind

    def end(self) -> Parts:
        """Return what was held back, at the end of the reply."""
        parts: Parts = []
        if self._state == "first" or (self._state == "body" and self._held):
            self._state = "body"
            self._add(parts, self._held.rstrip() if self._kind == "thought" else self._held)
        self._held = ""
        return parts

    def _advance(self, parts: Parts) -> bool:
        if self._state == "body":
            return self._read_body(parts)
        if self._state == "first":
            return self._look_for_header()
        return self._read_header(parts)

    def _look_for_header(self) -> bool:
        """Look for the beginning of the first header; a reply may also have none."""
        begins = [self._channels.name, *filter(None, [self._recipient])]
        text = self._held.lstrip()
        if len(self._held) - len(text) <= MAX_SPACES:
            if text.startswith(tuple(begins)):
                self._state = "header"
                return True
            if any(begin.startswith(text) for begin in begins):
                return False
        self._state = "body"
        return True

    def _read_header(self, parts: Parts) -> bool:
        header, is_whole, rest = self._held.partition(self._channels.body)
        if not is_whole:
            return False
        self._held, self._state, self._is_first = rest, "body", True
        name = header.partition(self._channels.name)[2]
        found = re.search(re.escape(self._recipient) + r"([A-Za-z0-9_-]+)", header)
        if self._recipient and found is not None:
            self._kind = "tool_call"
            self.calls.append(ToolCall(new_call_id(), found[1]))
            self._give(parts, "tool_call", header)
        elif name.startswith(self._channels.thought) or "to=" in header:
            self._kind = "thought"
        else:
            self._kind = "text"
        return True

    def _read_body(self, parts: Parts) -> bool:
        found = self._held.find(self._channels.end)
        whole = self._held if found < 0 else self._held[:found]
        known = whole if self._kind != "thought" else whole.rstrip()
        self._add(parts, known)
        if found < 0:
            self._held = whole[len(known) :]
            return False
        self._held = self._held[found + len(self._channels.end) :]
        self._state = "header"
        return True

    def _add(self, parts: Parts, text: str) -> None:
        """Give a part of a message; its first part begins after white space."""
        if self._is_first and self._kind != "text":
            text = text.lstrip()
        if not text:
            return
        if self._kind == "tool_call":
            self.calls[-1].arguments += text
        elif self._is_first and self._kind in self._given:
            text = _GAP + text
        self._is_first = False
        self._given.add(self._kind)
        self._give(parts, self._kind, text)
