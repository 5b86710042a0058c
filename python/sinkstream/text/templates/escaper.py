"""Hides, in chat messages, whatever a template could make a control token out of."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from sinkstream.errors import InvalidArgument
from sinkstream.text.argument_name import PROMPT, ArgumentName

# The last planes of Unicode are for private use; their characters have neither case nor width, and
# no function of a template changes them.
_PRIVATE = range(0xF0000, 0x10FFFE)


class Escaper:
    """Hides, in messages, the letters with which texts of control tokens start and end.

    Letters stay where they are part of a text that the template itself names (`</think>`, which
    Qwen3's looks for), unless that text could become part of a control token's.
    """

    def __init__(
        self,
        literals: frozenset[str],
        constants: frozenset[str],
        source: str,
        messages: Iterable[Mapping[str, str]],
        argument: ArgumentName = PROMPT,
    ) -> None:
        """Choose what hides which letter.

        Args:
            literals: The texts of all control tokens.
            constants: The texts that the template names in its expressions.
            source: The template.
            messages: The conversation.
            argument: What it came in, for errors.

        Raises:
            InvalidArgument: The conversation leaves no character free to hide with.
        """
        contents = "".join(message["content"] for message in messages)
        needed = sorted(_outer_letters(literals) & set(contents))
        used = set(contents) | set(source)
        free = (
            letter
            for letter in map(chr, _PRIVATE)
            if letter not in used and _as_json(letter) not in contents
        )
        self._hidden = dict(zip(needed, free, strict=False))
        if len(self._hidden) < len(needed):
            raise InvalidArgument(
                f"{argument} must leave some of Unicode's private characters unused, but "
                "uses all of them.",
                param=argument.name,
            )
        kept = "|".join(map(re.escape, _harmless(literals, constants))) or "(?!)"
        letters = "".join(map(re.escape, needed))
        self._pattern = re.compile(f"({kept})|[{letters}]") if needed else None
        shown = {hidden: letter for letter, hidden in self._hidden.items()}
        # A template may have written a message as JSON with escapes.
        self._shown = shown | {_as_json(hidden): letter for hidden, letter in shown.items()}
        self._reveal = re.compile("|".join(map(re.escape, self._shown)) or "(?!)")

    def escape(self, content: str) -> str:
        """Return a content in which nothing can become a control token."""
        if self._pattern is None:
            return content
        return self._pattern.sub(lambda found: found[1] or self._hidden[found[0]], content)

    def unescape(self, piece: str) -> str:
        """Return what `escape` and then the template made a piece from."""
        return self._reveal.sub(lambda found: self._shown[found[0]], piece)


def _as_json(letter: str) -> str:
    return json.dumps(letter)[1:-1]


def _outer_letters(literals: Iterable[str]) -> set[str]:
    """Return the letters with which control tokens' texts start and end, leaving spaces aside."""
    stripped = (literal.strip() for literal in literals)
    return {letter for literal in stripped if literal for letter in (literal[0], literal[-1])}


@lru_cache(maxsize=16)
def _harmless(literals: frozenset[str], constants: frozenset[str]) -> list[str]:
    """Return a template's texts with outer letters that no control token's text can grow from."""
    letters = _outer_letters(literals)
    harmless = {
        constant
        for constant in constants
        if letters & set(constant)
        and not any(_touch(constant, literal.strip()) for literal in literals)
    }
    return sorted(harmless, key=len, reverse=True)


def _touch(text: str, literal: str) -> bool:
    """Return whether a text holds, is part of, or may grow into a control token's text."""
    if text in literal or literal in text:
        return True
    lengths = range(1, min(len(text), len(literal)) + 1)
    return any(text[-n:] == literal[:n] or text[:n] == literal[-n:] for n in lengths)
