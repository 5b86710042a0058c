"""Escapes everything in chat messages that a template could turn into a control token."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from sinkstream.errors import InvalidArgument
from sinkstream.text.argument_name import PROMPT, ArgumentName

# The last two planes of Unicode are for private use. Their characters have no case and no width,
# and no template function changes them.
_PRIVATE = range(0xF0000, 0x10FFFE)


class Escaper:
    """Escapes the characters with which the texts of control tokens start and end.

    A string that the template itself refers to stays unescaped (`</think>`, for which Qwen3's
    template searches), unless it could become part of a control token's text.
    """

    def __init__(
        self,
        literals: frozenset[str],
        constants: frozenset[str],
        source: str,
        messages: Iterable[Mapping[str, str]],
        argument: ArgumentName = PROMPT,
    ) -> None:
        """Choose a private-use character for each character to escape.

        Args:
            literals: The texts of all control tokens.
            constants: The strings in the template's expressions.
            source: The template.
            messages: The conversation.
            argument: The argument that contains it, for errors.

        Raises:
            InvalidArgument: The conversation uses all private-use characters.
        """
        contents = "".join(message["content"] for message in messages)
        needed = sorted(_outer_letters(literals) & set(contents))
        used = set(contents) | set(source)
        free = (
            letter
            for letter in map(chr, _PRIVATE)
            if letter not in used and _as_json(letter) not in contents
        )
        self._escapes = dict(zip(needed, free, strict=False))
        if len(self._escapes) < len(needed):
            raise InvalidArgument(
                f"{argument} must leave some of Unicode's private-use characters free, but "
                "uses all of them.",
                param=argument.name,
            )
        kept = "|".join(map(re.escape, _harmless(literals, constants))) or "(?!)"
        letters = "".join(map(re.escape, needed))
        self._pattern = re.compile(f"({kept})|[{letters}]") if needed else None
        originals = {escape: letter for letter, escape in self._escapes.items()}
        # A template may write a message as JSON with escape sequences.
        self._originals = originals | {_as_json(e): letter for e, letter in originals.items()}
        self._escaped = re.compile("|".join(map(re.escape, self._originals)) or "(?!)")

    def escape(self, content: str) -> str:
        """Return the content escaped, so that no part can become a control token."""
        if self._pattern is None:
            return content
        return self._pattern.sub(lambda found: found[1] or self._escapes[found[0]], content)

    def unescape(self, piece: str) -> str:
        """Undo `escape` in a piece of the rendering."""
        return self._escaped.sub(lambda found: self._originals[found[0]], piece)


def _as_json(letter: str) -> str:
    return json.dumps(letter)[1:-1]


def _outer_letters(literals: Iterable[str]) -> set[str]:
    """Return the first and last characters of control tokens' texts, ignoring spaces."""
    stripped = (literal.strip() for literal in literals)
    return {letter for literal in stripped if literal for letter in (literal[0], literal[-1])}


@lru_cache(maxsize=16)
def _harmless(literals: frozenset[str], constants: frozenset[str]) -> list[str]:
    """Return the strings with outer letters that cannot become part of a control token's text."""
    letters = _outer_letters(literals)
    harmless = {
        constant
        for constant in constants
        if letters & set(constant)
        and not any(_touch(constant, literal.strip()) for literal in literals)
    }
    return sorted(harmless, key=len, reverse=True)


def _touch(text: str, literal: str) -> bool:
    """Return whether a text contains, is part of, or overlaps a control token's text."""
    if text in literal or literal in text:
        return True
    lengths = range(1, min(len(text), len(literal)) + 1)
    return any(text[-n:] == literal[:n] or text[:n] == literal[-n:] for n in lengths)
