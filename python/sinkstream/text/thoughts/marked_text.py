"""Puts markers into a stream's text where its tags' tokens are; see Note: [Marked text].

A stream's text may lag behind its tokens: the bytes of an unfinished character and the beginning of
a stop string are held back. So a token's position is counted in characters of the whole text.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Collection, Mapping

from sinkstream.text.tokenizers.token_bytes import ReplyBytes, TokenBytes


class MarkedText:
    """Marks the text of one reply."""

    def __init__(
        self, markers: Mapping[int, str], table: TokenBytes, hidden: Collection[int]
    ) -> None:
        """Mark the tokens of `markers`.

        Args:
            markers: The markers, by token id.
            table: The bytes of all tokens.
            hidden: Tokens without text in addition to the control tokens.
        """
        self._markers = markers
        self._bytes = ReplyBytes(table, hidden)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._written = 0  # characters of the tokens so far
        self._shown = 0  # of these, what has been returned, or replaced by markers
        self._partial = ""  # of a marked token whose text has not completely arrived
        self._waiting: deque[tuple[int, int, str]] = deque()  # begin, characters, marker

    def push(self, token_id: int, text: str) -> str:
        """Return the text that a token completes, with markers."""
        if not self._markers:
            return text
        before = self._written
        self._written += len(self._decoder.decode(self._bytes.next(token_id)))
        marker = self._markers.get(token_id)
        if marker is not None:
            shown = self._bytes.own(token_id).decode("utf-8", "replace")
            own = min(len(shown), self._written - before)
            self._waiting.append((self._written - own, own, marker))
        return self.push_text(text)

    def push_text(self, text: str) -> str:
        """Return more text of the tokens so far, with markers."""
        text = self._partial + text
        self._partial = ""
        marked = ""
        while self._waiting:
            begin, own, marker = self._waiting[0]
            known = begin - self._shown
            if len(text) < known + own:
                marked += text[:known]
                self._partial = text[known:]
                self._shown += min(known, len(text))
                return marked
            self._waiting.popleft()
            marked += text[:known] + marker
            text = text[known + own :]
            self._shown = begin + own
        self._shown += len(text)
        return marked + text

    def end(self) -> str:
        """Return what is left of a marked token's text if a stop string has cut off the rest."""
        partial, self._partial = self._partial, ""
        self._waiting.clear()
        return partial
