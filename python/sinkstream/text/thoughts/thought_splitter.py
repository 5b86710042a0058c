"""Splits marked text that arrives in pieces into thoughts and text.

However the text is cut into pieces, the joined thoughts and the joined text are the same. White
space around a thought is the template's and is left out. A thought can only begin a reply: tags
that come later are ordinary text.
"""

from __future__ import annotations

from typing import Literal

from sinkstream.text.thoughts.marked_splitter import (
    MAX_SPACES,
    MarkedSplitter,
    Parts,
    begun,
    without_spaces,
)
from sinkstream.text.thoughts.thought_format import Kind, ThoughtFormat

_State = Literal["before", "first", "thought", "after", "text"]


class ThoughtSplitter(MarkedSplitter):
    """Splits one reply."""

    def __init__(self, form: ThoughtFormat) -> None:
        super().__init__(form.shown)
        self._form = form
        # Before a thought, first in it, inside, after it, in the text.
        self._state: _State = "first" if form.start == "thought" else form.start

    @property
    def kind(self) -> Kind:
        """Return what the next text is, as far as known."""
        return "thought" if self._state in ("first", "thought") else "text"

    def end(self) -> Parts:
        """Return what was held back, at the end of the reply."""
        parts: Parts = []
        if self._state != "after":
            self._give(parts, self.kind, self._held)
        self._held = ""
        return parts

    def _advance(self, parts: Parts) -> bool:
        if self._state == "before":
            return self._look_for_thought(parts)
        if self._state == "first":
            return self._begin_thought()
        if self._state == "thought":
            return self._continue_thought(parts)
        text = self._held.lstrip() if self._state == "after" else self._held
        if text:
            self._state = "text"
        self._give(parts, "text", text)
        self._held = ""
        return False

    def _look_for_thought(self, parts: Parts) -> bool:
        begin, answer = self._form.begin, self._form.answer
        rest = self._held.lstrip()
        if len(self._held) - len(rest) <= MAX_SPACES:
            if rest.startswith(begin):
                self._state, self._held = "first", rest[len(begin) :]
                return True
            if answer and rest.startswith(answer):
                self._state, self._held = "after", rest[len(answer) :]
                return True
            if begin.startswith(rest) or answer.startswith(rest):
                return False
        self._state = "text"
        return True

    def _begin_thought(self) -> bool:
        """Leave out white space, and a tag that repeats the one in the prompt."""
        begin = self._form.begin
        self._held = self._held.lstrip()
        if self._held.startswith(begin):
            self._held = self._held[len(begin) :]
            return True
        if begin.startswith(self._held):
            return False
        self._state = "thought"
        return True

    def _continue_thought(self, parts: Parts) -> bool:
        found = self._held.find(self._form.end)
        if found >= 0:
            known = without_spaces(self._held, found)
            self._give(parts, "thought", self._held[:known])
            self._state, self._held = "after", self._held[found + len(self._form.end) :]
            return True
        known = without_spaces(self._held, len(self._held) - begun(self._held, self._form.end))
        self._give(parts, "thought", self._held[:known])
        self._held = self._held[known:]
        return False
