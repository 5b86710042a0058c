"""Control tokens: tokens that steer a model and are never text, such as `<|im_start|>`.

Added tokens that are not special (`<think>` in Qwen3) are ordinary text: a prompt may contain them,
and a stream shows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tokenizers import AddedToken, Tokenizer


def control_tokens(tokenizer: Tokenizer) -> dict[int, AddedToken]:
    """Return the control tokens of a tokenizer, by id."""
    added = tokenizer.get_added_tokens_decoder()
    return {token_id: token for token_id, token in added.items() if token.special}


class ControlLiterals:
    """Finds the texts of control tokens wherever the tokenizer itself would match them."""

    def __init__(self, tokens: dict[int, AddedToken]) -> None:
        self._by_literal = {token.content: (token_id, token) for token_id, token in tokens.items()}
        # Of several that start at the same position, the longest matches, as in `tokenizers`.
        longest_first = sorted(self._by_literal, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(self._expression, longest_first)) or r"(?!)")

    @property
    def literals(self) -> frozenset[str]:
        """The texts of all control tokens."""
        return frozenset(self._by_literal)

    def first_in(self, text: str) -> str | None:
        """Return the first literal in a text, or None."""
        found = self._pattern.search(text)
        return found[0] if found else None

    def split(self, text: str) -> Iterator[str | int]:
        """Yield the non-empty plain pieces of a text, and the ids of the control tokens between."""
        begin = 0
        for found in self._pattern.finditer(text):
            token_id, token = self._by_literal[found[0]]
            plain = text[begin : found.start()]
            if token.lstrip:
                plain = plain.rstrip()
            if plain:
                yield plain
            yield token_id
            begin = found.end()
            if token.rstrip:
                begin = len(text) - len(text[begin:].lstrip())
        if begin < len(text):
            yield text[begin:]

    def _expression(self, literal: str) -> str:
        _, token = self._by_literal[literal]
        escaped = re.escape(literal)
        return rf"(?<!\w){escaped}(?!\w)" if token.single_word else escaped
