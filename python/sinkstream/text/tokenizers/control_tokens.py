"""Control tokens: tokens that steer a model and are never text, such as `<|im_start|>`.

Added tokens that are not special (`<think>` in Qwen3) are ordinary text: a prompt may contain them,
and a stream shows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tokenizers import AddedToken, Tokenizer


def control_tokens(tokenizer: Tokenizer) -> dict[int, AddedToken]:
    """Return the control tokens of a tokenizer, by id."""
    added = tokenizer.get_added_tokens_decoder()
    return {token_id: token for token_id, token in added.items() if token.special}


class Found(NamedTuple):
    """A control token in a text."""

    begin: int
    end: int
    token_id: int


class ControlLiterals:
    """Finds the texts of control tokens wherever the tokenizer itself would match them."""

    def __init__(self, tokens: dict[int, AddedToken]) -> None:
        self._tokens = tokens
        self._by_literal = {token.content: (token_id, token) for token_id, token in tokens.items()}
        # Of several that start at the same position, the longest matches, as in `tokenizers`.
        longest_first = sorted(self._by_literal, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(self._expression, longest_first)) or r"(?!)")

    def first_in(self, text: str) -> str | None:
        """Return the first literal in a text, or None."""
        found = self._pattern.search(text)
        return found[0] if found else None

    def literal(self, token_id: int) -> str:
        """Return the text of a control token."""
        return self._tokens[token_id].content

    def find(self, text: str, begin: int, end: int) -> Iterator[Found]:
        """Yield the control tokens in a part of a text, as the tokenizer matches them there."""
        for match in self._pattern.finditer(text, begin, end):
            token_id, token = self._by_literal[match[0]]
            if not (token.single_word and re.match(r"\w", text[match.end() : match.end() + 1])):
                yield Found(match.start(), match.end(), token_id)

    def split(self, text: str, found: Iterable[Found]) -> Iterator[str | int]:
        """Yield the ids of the control tokens found in a text, and the plain pieces between."""
        begin = 0
        for start, end, token_id in found:
            token = self._tokens[token_id]
            plain = text[begin:start]
            if token.lstrip:
                plain = plain.rstrip()
            if plain:
                yield plain
            yield token_id
            begin = end
            if token.rstrip:
                begin = len(text) - len(text[begin:].lstrip())
        if begin < len(text):
            yield text[begin:]

    def without(self, text: str) -> str:
        """Return a text with other letters in the place of control tokens."""
        return self._pattern.sub(lambda match: re.sub(r"\S", "x", match[0]), text)

    def _expression(self, literal: str) -> str:
        _, token = self._by_literal[literal]
        escaped = re.escape(literal)
        return rf"(?<!\w){escaped}(?!\w)" if token.single_word else escaped
