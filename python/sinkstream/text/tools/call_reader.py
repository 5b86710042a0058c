"""Reads the tokens of a reply that may call tools, and separates thoughts, text and calls."""

from __future__ import annotations

import string
from dataclasses import dataclass, replace
from typing import Literal

from sinkstream.text.channels import new_call_id
from sinkstream.text.marked_text import (
    MAX_SPACES,
    Kind,
    MarkedSplitter,
    Parts,
    ThoughtFormat,
    begun,
    without_spaces,
)
from sinkstream.text.messages import ToolCall
from sinkstream.text.thought_reader import ThoughtReader, ThoughtTags
from sinkstream.text.tools.call_format import ID_LENGTH, ID_MARK, NAME_LETTERS, CallFormat

NO_THOUGHTS = ThoughtFormat("", "", "", "text", "text", False, False, {}, {})
"""The tags of a model without thoughts: a reply is text from the start."""
_State = Literal["text", "literal", "name", "arguments", "after", "end", "all_text"]
_LETTERS = string.ascii_letters + string.digits


@dataclass(slots=True)
class _Json:
    """Where in a JSON object a reader is."""

    depth: int = 0
    is_string: bool = False
    is_escaped: bool = False

    def ends_at(self, text: str) -> int:
        """Return the length of `text` up to where the object ends; 0 if that is not in it."""
        for i, letter in enumerate(text):
            if self.is_escaped:
                self.is_escaped = False
            elif self.is_string:
                self.is_escaped = letter == "\\"
                self.is_string = letter != '"'
            elif letter == '"':
                self.is_string = True
            elif letter in "{[":
                self.depth += 1
            elif letter in "}]":
                self.depth -= 1
                if self.depth == 0:
                    return i + 1
        return 0


class CallSplitter(MarkedSplitter):
    """Splits one reply into text and tool calls.

    However the text is cut into pieces, the result is the same. The grammar guarantees that a call
    is complete and its arguments are JSON: they end where their outermost brace closes, whatever
    their strings contain. White space before a call is the template's and is left out.
    """

    def __init__(self, form: CallFormat, *, is_first: bool) -> None:
        """Split a reply; `is_first` says whether calls can only begin it."""
        super().__init__(form.shown)
        self.calls: list[ToolCall] = []
        """The calls that have begun."""
        self._form = form
        self._is_first = is_first
        self._state: _State = "text"
        self._json = _Json()

    @property
    def kind(self) -> Kind:
        """Return what the next text is, as far as known."""
        return "text" if self._state in ("text", "all_text") else "tool_call"

    def end(self) -> Parts:
        """Return what was held back, at the end of the reply."""
        parts: Parts = []
        self._give(parts, self.kind, self._held)
        self._held = ""
        return parts

    def _advance(self, parts: Parts) -> bool:
        if self._state == "text":
            return self._look_for_call(parts)
        if self._state == "literal":
            return self._read_literal(parts)
        if self._state == "name":
            return self._read_name(parts)
        if self._state == "arguments":
            return self._read_arguments(parts)
        if self._state == "after":
            return self._look_for_next(parts)
        self._give(parts, self.kind, self._held)
        self._held = ""
        return False

    def _look_for_call(self, parts: Parts) -> bool:
        trigger = self._form.trigger
        if self._is_first:
            rest = self._held.lstrip()
            if trigger.startswith(rest) and len(self._held) - len(rest) <= MAX_SPACES:
                if len(rest) < len(trigger):
                    return False
            elif not rest.startswith(trigger):
                self._state = "all_text"
                return True
            found = len(self._held) - len(rest)
        else:
            found = self._held.find(trigger)
        if found < 0:
            known = without_spaces(self._held, len(self._held) - begun(self._held, trigger))
            self._give(parts, "text", self._held[:known])
            self._held = self._held[known:]
            return False
        self._give(parts, "text", self._held[: without_spaces(self._held, found)])
        self._held = self._held[found:]
        self._state = "literal"
        return True

    def _read_literal(self, parts: Parts) -> bool:
        """Read what stands before a name."""
        length = _match(self._form.begin, self._held)
        if length is None:
            return False
        if length < 0:  # the reply follows no grammar here
            self._state = "all_text"
            return True
        self._give(parts, "tool_call", self._held[:length])
        self._held = self._held[length:]
        self._state = "name"
        return True

    def _read_name(self, parts: Parts) -> bool:
        held, middle = self._held, self._form.middle
        length = next((i for i, letter in enumerate(held) if letter not in NAME_LETTERS), len(held))
        rest = held[length:]
        matched = _match(middle, rest) if rest else None
        if matched is None:
            return False
        if matched < 0:
            self._state = "all_text"
            return True
        self._give(parts, "tool_call", held[: length + matched])
        self.calls.append(ToolCall(self._new_id(), held[:length]))
        self._held = rest[matched:]
        self._state, self._json = "arguments", _Json()
        return True

    def _read_arguments(self, parts: Parts) -> bool:
        end = self._json.ends_at(self._held)
        arguments = self._held[:end] if end else self._held
        call = self.calls[-1]
        call.arguments += arguments if call.arguments else arguments.lstrip()
        self._give(parts, "tool_call", arguments)
        self._held = self._held[len(arguments) :]
        if end:
            self._state = "after"
        return bool(end)

    def _look_for_next(self, parts: Parts) -> bool:
        between = self._form.between
        length = -1 if between is None else _match(between, self._held)
        if length is None:
            return False
        if length < 0:  # that was the last call
            self._state = "end"
            return True
        self._give(parts, "tool_call", self._held[:length])
        self._held = self._held[length:]
        self._state = "name"
        return True

    def _new_id(self) -> str:
        if not self._form.has_short_ids:
            return new_call_id()
        import secrets  # it loads OpenSSL, which replies without calls do not need

        return "".join(secrets.choice(_LETTERS) for _ in range(ID_LENGTH))


def _match(literal: str, text: str) -> int | None:
    """Return how much of a text a literal takes; None if more is needed, -1 if they differ."""
    at = 0
    for letter in literal:
        if letter == ID_MARK:
            if len(text) - at < ID_LENGTH:
                return None
            at += ID_LENGTH
        elif at == len(text):
            return None
        elif text[at] != letter:
            return -1
        else:
            at += 1
    return at


class CallReader(ThoughtReader):
    """Reads one reply, which follows a grammar from `call_grammar`."""

    def __init__(self, tags: ThoughtTags, calls: CallFormat, *, is_first: bool) -> None:
        """Read calls after a thought between `tags`.

        With `is_first`, calls can only begin a reply, and so never follow text.
        """
        markers = {**calls.markers, **tags.form.markers}
        super().__init__(replace(tags, form=replace(tags.form, markers=markers)))
        self._calls = CallSplitter(calls, is_first=is_first)
        self.calls = self._calls.calls

    def token(self, token_id: int, text: str) -> tuple[Kind, Parts]:
        """Return what a token belongs to, and what is now known with the text it completes."""
        before = self._calls.kind
        kind, parts = super().token(token_id, text)
        parts = self._split(parts)
        if kind == "text" and "tool_call" in (before, self._calls.kind):
            kind = "tool_call"
        return kind, parts

    @property
    def kind(self) -> Kind:
        """Return what the next token belongs to, as far as known."""
        kind = super().kind
        return self._calls.kind if kind == "text" else kind

    def push_text(self, text: str) -> Parts:
        """Return what is known with further text, which belongs to no new token."""
        return self._split(super().push_text(text))

    def end(self, text: str = "") -> Parts:
        """Return what was held back, at the end of the reply; a second call returns nothing."""
        return self._split(super().end(text)) + self._calls.end()

    def _split(self, parts: Parts) -> Parts:
        split: Parts = []
        for kind, marked in parts:
            split += self._calls.push(marked) if kind == "text" else [(kind, marked)]
        return split
