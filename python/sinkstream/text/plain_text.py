"""Encodes plain text: whatever the text, the result has no control tokens."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.pre_tokenizers import PreTokenizer

from sinkstream.errors import InvalidArgument
from sinkstream.request.cancellation import check_wanted
from sinkstream.request.checks import PROMPT, ArgumentName, check_unicode
from sinkstream.text.tokenizers import OfTokenizer, catch_panics, encoding_of
from sinkstream.text.tokenizers.control_tokens import control_tokens
from sinkstream.text.tokenizers.encoding_limit import check_length


class PlainEncoder:
    """A tokenizer without control tokens. It shares the original's model, so it is cheap."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        control = control_tokens(tokenizer)
        # The unknown token is allowed: it stands for characters that the vocabulary lacks.
        unknown = getattr(tokenizer.model, "unk_token", None)
        self._forbidden = {
            token_id for token_id, token in control.items() if token.content != unknown
        }
        kept = [token for token_id, token in sorted(_added(tokenizer)) if token_id not in control]
        pre_tokenizer = tokenizer.pre_tokenizer
        self._at_start = _twin(tokenizer, pre_tokenizer, kept)
        later = _pre_tokenizer_after_start(pre_tokenizer)
        self._inside = self._at_start if later is None else _twin(tokenizer, later, kept)
        # The twins renumber added tokens that are outside of the model's own vocabulary.
        known = {token.content: token_id for token_id, token in _added(tokenizer)}
        renumbered = (
            (token_id, known[token.content]) for token_id, token in _added(self._at_start)
        )
        self._ids = {new: old for new, old in renumbered if new != old}

    def encode(
        self, text: str, *, at_start: bool = True, argument: ArgumentName = PROMPT
    ) -> list[int]:
        """Encode a text.

        Args:
            text: Any text; the literals of control tokens are ordinary characters.
            at_start: Whether it starts the whole text (some tokenizers prepend a space there).
            argument: The argument that contains it, for errors.

        Raises:
            CheckpointError: The tokenizer fails on it.
            InvalidArgument: A single character is a control token in this vocabulary.
        """
        done: list[int] = []
        pending = [text]  # in reverse order
        while pending:
            check_wanted()
            part = pending.pop()
            tokenizer = self._at_start if at_start else self._inside
            fails = f"{argument.call}: the checkpoint's tokenizer fails on `{argument.name}`"
            check_length(tokenizer, part, argument)
            with catch_panics(fails):
                ids = encoding_of(tokenizer, part).ids
            if self._ids:
                ids = [self._ids.get(token_id, token_id) for token_id in ids]
            if self._forbidden.isdisjoint(ids):
                done += ids
                at_start = False
                continue
            # The merges of some vocabularies produce control tokens. A cut prevents such a merge.
            offsets = encoding_of(tokenizer, part, has_offsets=True).offsets
            cuts = [
                (begin + end) // 2
                for token_id, (begin, end) in zip(ids, offsets, strict=True)
                if token_id in self._forbidden
            ]
            pending += reversed(_cut(part, cuts, argument))
        return done

    def encode_after(
        self, before: str, text: str, *, at_start: bool = True, argument: ArgumentName = PROMPT
    ) -> list[int]:
        """Encode text that continues other text, as `encode` would encode it within the whole.

        Args:
            before: The text before it, already encoded. If its last characters would merge with
                the first ones of `text` into one token, they are kept apart.
            text: Any text.
            at_start: Whether `before` starts the whole text.
            argument: The argument that contains it, for errors.
        """
        # "a" is the fallback: any letter prevents the space that a tokenizer prepends to a text.
        for other in (before, "a"):
            known = self.encode(other, at_start=at_start, argument=argument)
            ids = self.encode(other + text, at_start=at_start, argument=argument)
            if ids[: len(known)] == known:
                return ids[len(known) :]
        return self.encode(text, at_start=False, argument=argument)


plain_encoder = OfTokenizer(PlainEncoder)


def _added(tokenizer: Tokenizer) -> Iterable[tuple[int, AddedToken]]:
    return tokenizer.get_added_tokens_decoder().items()


def _twin(
    tokenizer: Tokenizer, pre_tokenizer: PreTokenizer | None, added: list[AddedToken]
) -> Tokenizer:
    """Return a tokenizer that shares the model and has only these added tokens."""
    twin = Tokenizer(tokenizer.model)
    if tokenizer.normalizer is not None:
        twin.normalizer = tokenizer.normalizer
    if pre_tokenizer is not None:
        twin.pre_tokenizer = pre_tokenizer
    twin.add_tokens(added)
    return twin


def _pre_tokenizer_after_start(pre_tokenizer: PreTokenizer | None) -> PreTokenizer | None:
    """Return the pre-tokenizer for pieces after the start of a text, or None if it is the same.

    Metaspace with the scheme "first" is the only component that treats the start of a text
    differently from the start of a piece that follows a control token.
    """
    if pre_tokenizer is None:
        return None
    state = json.loads(pre_tokenizer.__getstate__())
    is_sequence = state["type"] == "Sequence"
    steps = state["pretokenizers"] if is_sequence else [state]
    firsts = [i for i, step in enumerate(steps) if step.get("prepend_scheme") == "first"]
    if not firsts:
        return None
    changed = copy.deepcopy(pre_tokenizer)
    parts: Any = changed  # the type stubs lack the parts of a sequence and their fields
    for i in firsts:
        step = parts[i] if is_sequence else parts
        step.prepend_scheme = "never"
    return changed


def _cut(text: str, cuts: list[int], argument: ArgumentName) -> list[str]:
    """Cut a text at offsets that must lie inside it."""
    if not all(0 < cut < len(text) for cut in cuts):
        raise InvalidArgument(
            f"{argument} must contain only characters that have a token, but "
            f"U+{ord(text[0]):04X} is only a control token in this vocabulary.",
            param=argument.name,
        )
    ends = [*cuts, len(text)]
    return [text[begin:end] for begin, end in zip([0, *cuts], ends, strict=True)]


def check_characters(text: str, where: str | ArgumentName) -> None:
    """Check that text has no lone surrogates.

    Raises:
        InvalidArgument: It has some; the message names the first one.
    """
    param = where.name if isinstance(where, ArgumentName) else "prompt"
    check_unicode(str(where), text, param)
