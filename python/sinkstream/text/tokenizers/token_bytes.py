"""The bytes of each token: the table from which text is decoded natively.

`Tokenizer.decode` concatenates bytes and decodes them at once, so a stream that emits the bytes as
they arrive shows the same text. Three differences are deliberate. An added token such as `café`
shows its own text; `tokenizers` reads it in the alphabet of byte-level vocabularies, in which `é`
is one byte that no character ends with. A control token is hidden even if it is matched after
normalization; `tokenizers` shows it if normalization changes it. And here, byte pieces of
SentencePiece vocabularies are joined with the bytes around them. `tokenizers` turns a whole run of
byte pieces into one U+FFFD per byte if any byte of the run is invalid. A stream cannot take
characters back, so it shows the valid ones.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, overload

from tokenizers import Tokenizer

from sinkstream import _core
from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError
from sinkstream.text.tokenizers.control_tokens import control_tokens

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Pieces(Sequence[bytes]):
    """The bytes of each token, end to end: 50,000 objects of their own would take 2 MB more."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        """Copy the pieces."""
        self._joined = b"".join(pieces)
        self._starts = array("Q", accumulate(map(len, pieces), initial=0))  # [tokens + 1]

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        token_id = range(len(self))[index]
        return self._joined[self._starts[token_id] : self._starts[token_id + 1]]

    def __iter__(self) -> Iterator[bytes]:
        return map(self._joined.__getitem__, map(slice, self._starts, self._starts[1:]))


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """Turns ids into bytes. The text is these bytes as UTF-8, with U+FFFD for invalid ones."""

    pieces: Pieces
    """One for each id of the model's vocabulary; empty if the tokenizer has no such token."""
    special: frozenset[int]
    """Ids that are not shown."""
    strip_leading_space: bool
    """Whether a leading space is removed from a text (SentencePiece's prefix)."""


def token_bytes(
    tokenizer: Tokenizer, vocab_size: int, vocabulary: Mapping[str, int] | None = None
) -> TokenBytes:
    """Build the table of a tokenizer.

    Args:
        tokenizer: Any tokenizer with a byte-level or SentencePiece-style decoder.
        vocab_size: Rows of the model's embedding.
        vocabulary: The tokenizer's tokens and ids, if the caller has them: getting them from the
            tokenizer takes as long as everything else here.

    Raises:
        CheckpointError: The decoder is not supported; the message lists those that are.
    """
    steps = _decoder_steps(tokenizer)
    kinds = [step["type"] for step in steps]
    to_bytes: Callable[[list[str]], list[bytes]]
    if kinds == ["ByteLevel"]:
        to_bytes = _core.byte_level_bytes
    elif _is_sentencepiece(steps):
        to_bytes = _from_sentencepiece(steps)
    else:
        raise CheckpointError(
            f"load: the tokenizer has the decoder {quoted(' + '.join(kinds) or 'none')}; the "
            "supported ones are ByteLevel, and Replace + ByteFallback + Fuse with or without Strip."
        )
    pieces = [b""] * vocab_size
    if vocabulary is None:
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    for token_id, piece in zip(vocabulary.values(), to_bytes(list(vocabulary)), strict=True):
        if token_id < vocab_size:
            pieces[token_id] = piece
    # The alphabet of the vocabulary does not apply to added tokens: "café" is four letters.
    for token_id in tokenizer.get_added_tokens_decoder():
        if token_id < vocab_size:
            text = str(tokenizer.id_to_token(token_id))
            is_plain = to_bytes is _core.byte_level_bytes
            pieces[token_id] = text.encode() if is_plain else to_bytes([text])[0]
    special = frozenset(token_id for token_id in control_tokens(tokenizer) if token_id < vocab_size)
    return TokenBytes(Pieces(pieces), special, strip_leading_space="Strip" in kinds)


class ReplyBytes:
    """The bytes that the tokens of one reply show, one token after the other."""

    def __init__(self, table: TokenBytes, hidden: Collection[int]) -> None:
        """Show the tokens of `table`, except control tokens and those in `hidden`."""
        self._table = table
        self._hidden = hidden
        self._strips = table.strip_leading_space

    def own(self, token_id: int) -> bytes:
        """Return what a token shows anywhere but at the beginning."""
        table = self._table
        is_hidden = token_id in table.special or token_id in self._hidden
        return b"" if is_hidden or token_id >= len(table.pieces) else table.pieces[token_id]

    def next(self, token_id: int) -> bytes:
        """Return what the next token shows."""
        content = self.own(token_id)
        if self._strips and content:
            self._strips = False
            content = content.removeprefix(b" ")
        return content


def decode_bytes(table: TokenBytes, ids: Iterable[int]) -> bytes:
    """Decode all ids at once: the reference for the native detokenizer."""
    text = b"".join(table.pieces[token_id] for token_id in ids if token_id not in table.special)
    return text[1:] if table.strip_leading_space and text.startswith(b" ") else text


def _decoder_steps(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    decoder = tokenizer.decoder
    if decoder is None:
        return []
    state: dict[str, Any] = json.loads(decoder.__getstate__())
    steps: list[dict[str, Any]] = state["decoders"] if state["type"] == "Sequence" else [state]
    return steps


def _is_sentencepiece(steps: list[dict[str, Any]]) -> bool:
    """Return whether the steps are SentencePiece's, whatever character replaces a space."""
    kinds = [step["type"] for step in steps]
    if kinds[:3] != ["Replace", "ByteFallback", "Fuse"] or kinds[3:] not in ([], ["Strip"]):
        return False
    strips_one_space = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return "String" in steps[0]["pattern"] and steps[3:] in ([], [strips_one_space])


def _from_sentencepiece(steps: list[dict[str, Any]]) -> Callable[[list[str]], list[bytes]]:
    pattern, content = steps[0]["pattern"]["String"], steps[0]["content"]

    def to_bytes(token: str) -> bytes:
        text = token.replace(pattern, content)
        byte = _BYTE_PIECE.fullmatch(text)
        return bytes([int(byte[1], 16)]) if byte else text.encode()

    return lambda tokens: list(map(to_bytes, tokens))
