"""Encodes a rendering of a chat template as a whole, as transformers does.

The tokenizer itself decides where a control token matches, and what it does to the text next to it:
it may absorb whitespace, or keep a word from matching. That is allowed only as long as no character
of a message is part of a control token.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer

from sinkstream.text.argument_name import ArgumentName
from sinkstream.text.templates.traced_text import MESSAGE, UNKNOWN, TracedText
from sinkstream.text.tokenizers import catch_panics
from sinkstream.text.tokenizers.control_tokens import WHITESPACE, Found, control_tokens
from sinkstream.text.tokenizers.vocabulary_kinds import SPACE


class WholeEncoder:
    """A tokenizer whose control tokens only the template may write."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # The unknown token is allowed anywhere: it stands for characters that the vocabulary lacks.
        unknown = getattr(tokenizer.model, "unk_token", None)
        self._control = {
            token_id: token
            for token_id, token in control_tokens(tokenizer).items()
            if token.content != unknown
        }

    def encode(
        self, written: TracedText, found: Iterable[Found], argument: ArgumentName
    ) -> list[int] | None:
        """Encode a rendering; return None if part of a message is in one of its control tokens.

        Args:
            written: The rendering.
            found: The control tokens that the template has written.
            argument: The argument that contains the conversation, for errors.

        Raises:
            CheckpointError: The tokenizer fails on it.
        """
        text = str.__str__(written)
        fails = f"{argument.call}: the checkpoint's tokenizer fails on `{argument.name}`"
        with catch_panics(fails):
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
        ids: list[int] = encoding.ids
        control = [i for i, token_id in enumerate(ids) if token_id in self._control]
        offsets = encoding.offsets if control else []
        for i in control:
            begin, end = _literal(text, *offsets[i], self._control[ids[i]])
            origins = written.origins[begin:end]
            if not origins or MESSAGE in origins or UNKNOWN in origins:
                return None
        # The offsets of a token that matches in the normalized text are less certain.
        known = iter(match.token_id for match in found)
        normalized = (ids[i] for i in control if self._control[ids[i]].normalized)
        return ids if all(token_id in known for token_id in normalized) else None


def _literal(text: str, begin: int, end: int, token: AddedToken) -> tuple[int, int]:
    """Return where a token's own text is, without the whitespace that it has absorbed."""
    own = token.content
    if own[:1] in WHITESPACE or own[-1:] in WHITESPACE:
        return begin, end  # it is uncertain which whitespace is the token's own
    # See Note: [Spaces that normalization adds] of control_tokens.py.
    if token.normalized and text[begin:end].strip(WHITESPACE + SPACE) == own:
        begin = text.index(own, begin)
        return begin, begin + len(own)
    while token.lstrip and begin < end and text[begin] in WHITESPACE:
        begin += 1
    while token.rstrip and begin < end and text[end - 1] in WHITESPACE:
        end -= 1
    return begin, end
