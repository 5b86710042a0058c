"""Control tokens: tokens that steer a model and are never text, such as `<|im_start|>`.

Added tokens that are not special (`<think>` in Qwen3) are ordinary text: a prompt may contain them,
and a stream shows them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

from tokenizers import AddedToken, Tokenizer
from tokenizers.normalizers import Normalizer

from sinkstream.text.tokenizers import OfTokenizer
from sinkstream.text.tokenizers.vocabulary_kinds import SPACE

# Whitespace (`\s`) as `tokenizers` defines it; Python's also has U+001C to U+001F.
WHITESPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
_JOINERS = "\u200c\u200d"


def control_tokens(tokenizer: Tokenizer) -> dict[int, AddedToken]:
    """Return the control tokens of a tokenizer, by id."""
    added = tokenizer.get_added_tokens_decoder()
    return {token_id: token for token_id, token in added.items() if token.special}


class Found(NamedTuple):
    """A control token in a text."""

    begin: int
    end: int
    token_id: int
    first: int
    """Where it begins with the whitespace that it absorbs (`lstrip`, normalization)."""
    last: int
    """Where it ends with the whitespace that it absorbs (`rstrip`)."""


class ControlLiterals:
    """Finds the texts of control tokens wherever the tokenizer itself would match them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder()
        self._tokens = {i: token for i, token in added.items() if token.content}
        self._control = _Matcher({i: t for i, t in self._tokens.items() if t.special})
        self._normalizer = tokenizer.normalizer
        # In the text as written, and then, between these, in the normalized text.
        self._rounds = [
            _Matcher({i: t for i, t in self._tokens.items() if t.normalized is normalized})
            for normalized in (False, True)
        ]

    @cached_property
    def _spaces(self) -> dict[int, str]:
        """For each token, the whitespace that it may absorb."""
        return {i: _spaces_around(token, self._normalizer) for i, token in self._tokens.items()}

    @cached_property
    def _own_spaces(self) -> dict[int, str]:
        """For each token, the spaces of which it absorbs one, as its normalized text has it."""
        return {i: _own_spaces(token, self._normalizer) for i, token in self._tokens.items()}

    def first_in(self, text: str) -> str | None:
        """Return the first literal in a text, or None."""
        found = self._control.pattern.search(text)
        return found[0] if found else None

    def literal(self, token_id: int) -> str:
        """Return the text of a control token."""
        return self._tokens[token_id].content

    def find(self, text: str, begin: int, end: int) -> Iterator[Found]:
        """Yield the control tokens in a part of a text, as the tokenizer matches them there.

        Other added tokens hide the control tokens that they overlap, but are themselves searched
        for later, in the pieces of `split`. See `unsettled`.
        """
        written, normalized = self._rounds
        low = 0  # where the text between two matches begins
        for found in self._extended(written.find(text, begin, end, 0, len(text)), text):
            yield from self._between(normalized, text, (begin, end), (low, found.first))
            yield from self._special([found])
            low = found.last
        yield from self._between(normalized, text, (begin, end), (low, len(text)))

    def split(self, text: str, found: Iterable[Found]) -> Iterator[str | int]:
        """Yield the ids of the control tokens found in a text, and the plain pieces between."""
        begin = 0
        for match in found:
            if begin < match.first:
                yield text[begin : match.first]
            yield match.token_id
            begin = match.last
        if begin < len(text):
            yield text[begin:]

    def unsettled(self) -> list[str]:
        """Return the texts of other added tokens whose matching depends on the text next to them.

        In a piece of `split`, `tokenizers` may match such a token differently if it is next to a
        control token, which may end with a letter or absorb whitespace.
        """
        control = [token for token in self._tokens.values() if token.special]
        absorbs = any(token.lstrip or token.rstrip for token in control)
        return [
            token.content
            for token in self._tokens.values()
            if not token.special
            and (
                token.single_word
                or token.lstrip
                or token.rstrip
                or (absorbs and token.content.strip() != token.content)
            )
        ]

    def without(self, text: str) -> str:
        """Return text with other letters in place of control tokens."""
        return self._control.pattern.sub(lambda match: re.sub(r"\S", "x", match[0]), text)

    def _between(
        self, matcher: _Matcher, text: str, part: tuple[int, int], piece: tuple[int, int]
    ) -> Iterator[Found]:
        """Yield the control tokens in a part of a text that are within one piece of it."""
        begin, end = max(part[0], piece[0]), min(part[1], piece[1])
        found = matcher.find(text, begin, end, *piece)
        return self._special(self._extended(found, text, *piece))

    def _extended(
        self, found: Iterable[Found], text: str, low: int = 0, high: int | None = None
    ) -> Iterator[Found]:
        """Add to matches the whitespace around them, within text[low:high]."""
        high = len(text) if high is None else high
        for match in found:
            token, spaces = self._tokens[match.token_id], self._spaces[match.token_id]
            first, last = match.begin, match.end
            if first > low and text[first - 1] in self._own_spaces[match.token_id]:
                first -= 1
            while token.lstrip and first > low and text[first - 1] in spaces:
                first -= 1
            while token.rstrip and last < high and text[last] in spaces:
                last += 1
            if token.lstrip and low >= last:
                continue  # it is whitespace that the match before it has absorbed
            yield match._replace(first=first, last=last)
            low = last

    def _special(self, found: Iterable[Found]) -> Iterator[Found]:
        """Yield only control tokens: the others only hide those that they overlap."""
        return (match for match in found if self._tokens[match.token_id].special)


control_literals = OfTokenizer(ControlLiterals)


class _Matcher:
    """Matches some of a tokenizer's added tokens."""

    def __init__(self, tokens: dict[int, AddedToken]) -> None:
        self._by_literal = {token.content: (token_id, token) for token_id, token in tokens.items()}
        # Of several that start at the same position, the longest matches, as in `tokenizers`.
        longest_first = sorted(self._by_literal, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def find(self, text: str, begin: int, end: int, first: int, last: int) -> Iterator[Found]:
        """Yield the tokens in text[begin:end], a part of the piece text[first:last]."""
        for match in self.pattern.finditer(text, begin, end):
            token_id, token = self._by_literal[match[0]]
            before, after = text[first : match.start()][-1:], text[match.end() : last][:1]
            if not (token.single_word and (_is_word(before) or _is_word(after))):
                yield Found(*match.span(), token_id, *match.span())


def _spaces_around(token: AddedToken, normalizer: Normalizer | None) -> str:
    """Return the whitespace that a token may absorb (`lstrip`, `rstrip`)."""
    if normalizer is None or not token.normalized:
        return WHITESPACE
    # It is matched in the normalized text, where a space may be "▁".
    return "".join(c for c in WHITESPACE if normalizer.normalize_str(f"a{c}a")[-2:-1] in WHITESPACE)


# Note: [Spaces that normalization adds]
# A token with `normalized` is matched in the normalized text, and its own text is normalized, too.
# Where the normalizer prepends a space to every text, as SentencePiece's does, the token is then
# "▁</s>": it absorbs one space before it. At the beginning of a text, that is the prepended space.


def _own_spaces(token: AddedToken, normalizer: Normalizer | None) -> str:
    """Return the characters of which a token absorbs one, because its normalized text has it."""
    if normalizer is None or not token.normalized:
        return ""
    normalize = normalizer.normalize_str
    alone = normalize("a") + normalize(token.content)
    return "".join(c for c in WHITESPACE + SPACE if normalize(f"a{c}{token.content}") == alone)


def _is_word(character: str) -> bool:
    r"""Return whether a character, or nothing, is part of a word (`\w`) for `tokenizers`."""
    if not character:
        return False
    category = unicodedata.category(character)
    return category[0] in "LM" or category in ("Nd", "Nl", "Pc") or character in _JOINERS
