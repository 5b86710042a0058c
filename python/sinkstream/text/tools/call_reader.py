"""Reads the tokens of a reply that may call tools, and separates thoughts, text and calls."""

from __future__ import annotations

from dataclasses import replace

from sinkstream.text.thoughts.marked_splitter import Parts
from sinkstream.text.thoughts.thought_format import Kind, ThoughtFormat
from sinkstream.text.thoughts.thought_reader import ThoughtReader, ThoughtTags
from sinkstream.text.tools.call_format import CallFormat
from sinkstream.text.tools.call_splitter import CallSplitter

NO_THOUGHTS = ThoughtFormat("", "", "", "text", False, False, {}, {})
"""The tags of a model without thoughts: a reply is text from the start."""


class CallReader(ThoughtReader):
    """Reads one reply, which follows a grammar from `call_grammar`."""

    follows_grammar = True

    def __init__(self, tags: ThoughtTags, calls: CallFormat, *, is_first: bool) -> None:
        """Read calls in the form `calls` after a thought between `tags`.

        Args:
            tags: The tags around a thought.
            calls: How calls are written.
            is_first: Whether calls can only begin a reply, and so never follow text.
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
