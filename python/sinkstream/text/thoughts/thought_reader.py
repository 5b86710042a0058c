"""Reads a reply's tokens, and separates thoughts from text."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sinkstream.text.thoughts.marked_splitter import Parts
from sinkstream.text.thoughts.marked_text import MarkedText
from sinkstream.text.thoughts.thought_format import Kind, ThoughtFormat
from sinkstream.text.thoughts.thought_splitter import ThoughtSplitter
from sinkstream.text.tokenizers.token_bytes import ReplyBytes, TokenBytes
from sinkstream.text.tool_call import ToolCall


class Split(NamedTuple):
    """A reply, split into thoughts, text and calls."""

    thought: str
    text: str
    tokens: int
    """The number of tokens in thoughts and their tags."""
    kind: Kind
    """Where the reply ends."""
    calls: list[ToolCall]
    """The tools that it calls."""


@dataclass(frozen=True, slots=True)
class ThoughtTags:
    """A checkpoint's tags and the bytes of its tokens, which are needed to read each reply."""

    form: ThoughtFormat
    table: TokenBytes
    hidden: Collection[int]
    """Tokens without text in addition to the control tokens: those that end replies."""

    def all_text(self) -> ThoughtTags:
        """Return the same tags for replies that are text from the start."""
        return ThoughtTags(self.form.starting("text"), self.table, self.hidden)

    def reader(self, given: str = "") -> ThoughtReader:
        """Return a reader of a reply.

        Args:
            given: The beginning of the reply, if it was given rather than generated.
        """
        form = self.form
        if given:
            splitter = ThoughtSplitter(form)
            for marker, literal in form.literals.items():
                given = given.replace(literal, marker) if literal else given
            splitter.push(given)
            form = form.starting("thought" if splitter.kind == "thought" else "text")
        return ThoughtReader(ThoughtTags(form, self.table, self.hidden))

    def split(self, ids: Iterable[int], *, is_whole: bool = True) -> Split:
        """Split a reply.

        Args:
            ids: Its tokens.
            is_whole: If False, they are the last ones of a reply that began with a thought.
        """
        tags = self if is_whole else self.inside_thought()
        return tags.split_with(ThoughtReader(tags), ids)

    def inside_thought(self) -> ThoughtTags:
        """Return the same tags for the end of a reply that began with a thought."""
        return ThoughtTags(self.form.starting("thought"), self.table, self.hidden)

    def split_with(self, reader: ThoughtReader, ids: Iterable[int]) -> Split:
        """Split a reply with a reader for these tags that has read nothing yet."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        shown = ReplyBytes(self.table, self.hidden)
        parts: Parts = []
        for token_id in ids:
            parts += reader.token(token_id, decoder.decode(shown.next(token_id)))[1]
        parts += reader.end(decoder.decode(b"", final=True))
        thought, text = joined(parts, "thought"), joined(parts, "text")
        return Split(thought, text, reader.tokens, reader.kind, reader.calls)


class ThoughtReader:
    """For one reply.

    Attributes:
        tokens: How many tokens of thoughts and their tags have been read.
        follows_grammar: Whether it is for replies that follow a grammar.
        calls: The tool calls that have begun; only a `CallReader` finds any.
    """

    follows_grammar = False

    def __init__(self, tags: ThoughtTags) -> None:
        self._marked = MarkedText(tags.form.markers, tags.table, tags.hidden)
        self._splitter = ThoughtSplitter(tags.form)
        self.tokens = 0
        self.calls: list[ToolCall] = []

    def token(self, token_id: int, text: str) -> tuple[Kind, Parts]:
        """Return what a token belongs to, and what is now known with the text it completes."""
        before = self._splitter.kind
        parts = self._splitter.push(self._marked.push(token_id, text))
        kind: Kind = "thought" if "thought" in (before, self._splitter.kind) else "text"
        self.tokens += kind == "thought"
        return kind, parts

    @property
    def kind(self) -> Kind:
        """Return what the next token belongs to, as far as known."""
        return self._splitter.kind

    def push_text(self, text: str) -> Parts:
        """Return what is known with further text, which belongs to no new token."""
        return self._splitter.push(self._marked.push_text(text))

    def end(self, text: str = "") -> Parts:
        """Return what was held back, at the end of the reply; a second call returns nothing."""
        marked = self._marked.push_text(text) + self._marked.end()
        return self._splitter.push(marked) + self._splitter.end()


def joined(parts: Sequence[tuple[Kind, str]], kind: Kind) -> str:
    """Return the text of one kind."""
    return "".join(text for of, text in parts if of == kind)
