"""Compiles a checkpoint's chat template, and explains why one fails."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from jinja2 import Template, nodes
from jinja2.exceptions import TemplateError, UndefinedError
from jinja2.meta import find_undeclared_variables

from sinkstream.errors import InvalidArgument
from sinkstream.request.checks import PROMPT, ArgumentName
from sinkstream.text.templates.sandbox import TemplateSandbox

Piece = str | int
"""Plain text, never empty and never next to other plain text; or a control token's id."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a rendering, from some point to its end."""

    pieces: tuple[Piece, ...]
    before: str = ""
    """If it begins inside a plain piece, the text of that piece before it."""
    at_start: bool = True
    """Whether it begins in the rendering's first piece."""

    def after(self, word: str) -> Passage | None:
        """Return what follows the last occurrence of a word, or None if there is none."""
        for i in range(len(self.pieces) - 1, -1, -1):
            piece = self.pieces[i]
            if isinstance(piece, str) and word in piece:
                return self._from(i, piece.rindex(word) + len(word))
        return None

    def pieces_before(self, word: str) -> tuple[Piece, ...]:
        """Return the pieces before the first occurrence of a word; all pieces if there is none."""
        for i, piece in enumerate(self.pieces):
            if isinstance(piece, str) and word in piece:
                plain = piece[: piece.index(word)]
                return (*self.pieces[:i], plain) if plain else self.pieces[:i]
        return self.pieces

    def without_start(self, start: tuple[Piece, ...]) -> Passage | None:
        """Return what follows a start, or None if the passage does not begin with it."""
        if common_prefix(self.pieces, start) != start:
            return None
        if not start:
            return self
        last, piece = len(start) - 1, start[-1]
        if isinstance(piece, int):
            return self._from(last + 1, 0)
        return self._from(last, len(piece))

    def without_end(self, end: tuple[Piece, ...]) -> tuple[Piece, ...] | None:
        """Return the pieces before an end, or None if the passage does not end with it."""
        reversed_end = tuple(map(_reversed, reversed(end)))
        whole = Passage(tuple(map(_reversed, reversed(self.pieces))))
        rest = whole.without_start(reversed_end)
        return None if rest is None else tuple(map(_reversed, reversed(rest.pieces)))

    def _from(self, index: int, offset: int) -> Passage:
        """Return the passage that begins at an offset in one of the pieces."""
        if index == len(self.pieces):
            return Passage((), at_start=False)
        piece = self.pieces[index]
        earlier = self.before if index == 0 else ""
        at_start = self.at_start and index == 0
        if offset == 0 or isinstance(piece, int):
            return Passage(self.pieces[index:], earlier, at_start)
        rest = (piece[offset:],) if offset < len(piece) else ()
        return Passage(rest + self.pieces[index + 1 :], earlier + piece[:offset], at_start)


def common_prefix(a: tuple[Piece, ...], b: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Return the common prefix of two sequences of pieces; it may end inside a piece."""
    same = 0
    while same < min(len(a), len(b)) and a[same] == b[same]:
        same += 1
    start = a[:same]
    if same == min(len(a), len(b)):
        return start
    first, second = a[same], b[same]
    if isinstance(first, int) or isinstance(second, int):
        return start
    length = 0
    while length < min(len(first), len(second)) and first[length] == second[length]:
        length += 1
    return (*start, first[:length]) if length else start


def _reversed(piece: Piece) -> Piece:
    return piece[::-1] if isinstance(piece, str) else piece


def join_pieces(a: tuple[Piece, ...], b: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Concatenate two sequences of pieces, joining plain text where they meet."""
    if a and b and isinstance(a[-1], str) and isinstance(b[0], str):
        return (*a[:-1], a[-1] + b[0], *b[1:])
    return a + b


MAX_TEMPLATE_CHARACTERS = 64 << 10


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A compiled template."""

    template: Template
    constants: frozenset[str]
    """The strings in its expressions. It may search messages for some of them."""
    names: frozenset[str]
    """The variables and functions that it refers to."""
    variables: frozenset[str]
    """The variables that it reads without having set them, at least not in all cases."""

    @property
    def may_write_date(self) -> bool:
        """Return whether a rendering may depend on when it is made."""
        return "strftime_now" in self.names


SANDBOX = TemplateSandbox()


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
        tree = SANDBOX.parse(source)
        constants = {constant.value for constant in tree.find_all(nodes.Const)}
        texts = frozenset(value for value in constants if isinstance(value, str))
        names = frozenset(name.name for name in tree.find_all(nodes.Name))
        template = SANDBOX.from_string(tree)
        # Last: the search generates code, which changes the tree.
        variables = frozenset(find_undeclared_variables(tree))
        return ChatTemplate(template, texts, names, variables)
    except Exception as error:
        raise template_error(error, source, argument) from None


def template_error(error: Exception, source: str, argument: ArgumentName) -> InvalidArgument:
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
