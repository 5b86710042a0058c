"""Kept turns as they are shown: the text of each message, and which tokens hold it.

Tokens are counted from the conversation's beginning, including those of the chat template.
"""

from __future__ import annotations

import codecs
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from sinkstream.text.tokenizers.token_bytes import TokenBytes


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """A completed turn, as a store returns it."""

    id: str
    parent: str | None
    conversation: str
    session_key: str | None
    created: float
    finish_reason: str
    tokens: int
    """Ids of the conversation up to the reply's end, including evicted ones."""
    messages: list[dict[str, str]]
    """The canonical messages that it read; the last one may be the reply's beginning."""
    given: str
    """The beginning of the reply that was given."""
    read_ids: array[int]
    reply_ids: array[int]
    reply: str
    """What was generated."""
    form_tokens: int | None = None
    """Ids of the conversation up to its settled form's end; None if there is no such form."""
    form_ids: array[int] = field(default_factory=lambda: array("i"))
    sinks: int | None = None
    """S of the conversation; None for the model's."""


class ListedConversation(NamedTuple):
    """A conversation in a list of them."""

    id: str
    used: float
    """When it was used last."""
    title: str
    """How its first user message begins, unless it was renamed."""
    session_key: str | None
    """The client's name of it."""


class TurnOutline(NamedTuple):
    """A completed turn, without its text."""

    id: str
    parent: str | None
    conversation: str
    created: float
    tokens: int
    """Ids of the conversation up to the reply's end, including evicted ones."""
    bytes: int
    """Those of the ids that it read: about as many as their text has."""
    sinks: int | None
    """S of the conversation; None: the model's."""


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """A message and its tokens."""

    role: str
    content: str
    begin: int
    """The first token."""
    end: int
    """After the last token."""
    offsets: list[int] | None
    """The character at which each token begins; None if the tokens do not spell the text, such as
    after a template that changes it."""


def shown_messages(turn: StoredTurn, table: TokenBytes) -> list[ShownMessage]:
    """Return the messages of a turn, and its reply, as the latest turn that follows has them.

    If thoughts have been left out since, the tokens are those of the settled form.
    """
    replied = turn.tokens - len(turn.reply_ids)
    read = turn.messages[:-1] if turn.given else turn.messages
    if turn.form_tokens is not None:
        reply = {"role": "assistant", "content": turn.given + turn.reply}
        begin = turn.form_tokens - len(turn.form_ids)
        return _found([*read, reply], _spelled(turn.form_ids, table), begin)
    asked = _spelled(turn.read_ids, table)
    shown = _found(read, asked, replied - len(turn.read_ids))
    before = _offsets_of_given(asked, turn.given)
    offsets = _offsets_of_reply(_spelled(turn.reply_ids, table), turn.reply)
    if before is None or offsets is None:
        offsets = None
    else:
        offsets = before + [len(turn.given) + one for one in offsets]
    begin = replied - len(before or ())
    content = turn.given + turn.reply
    return [*shown, ShownMessage("assistant", content, begin, turn.tokens, offsets)]


def _offsets_of_given(pieces: list[bytes], given: str) -> list[int] | None:
    """Return the offsets of a reply's beginning, whose tokens are the last ones that were read."""
    if not given:
        return []
    text, wanted = b"".join(pieces), given.encode()
    if not text.endswith(wanted):
        return None  # the template leaves out white space
    starts = [0, *accumulate(map(len, pieces))]
    at = len(text) - len(wanted)
    begin = bisect_right(starts, at) - 1
    skipped = len(text[starts[begin] : at].decode("utf-8", "replace"))
    return [max(0, one) for one in _offsets(pieces[begin:], -skipped)]


def _offsets_of_reply(pieces: list[bytes], reply: str) -> list[int] | None:
    """Return the offsets of a reply; the tokens of a thought are before its first character."""
    text = b"".join(pieces).decode("utf-8", "replace")
    # A stop string may follow the reply.
    is_first = text.startswith(reply) and not text.endswith(reply)
    begin = 0 if is_first else text.rfind(reply)
    return None if begin < 0 else [max(0, one) for one in _offsets(pieces, -begin)]


def _spelled(ids: Sequence[int], table: TokenBytes) -> list[bytes]:
    """Return the bytes of each token; control tokens have none."""
    return [b"" if one in table.special else table.pieces[one] for one in ids]


def _found(messages: list[dict[str, str]], pieces: list[bytes], first: int) -> list[ShownMessage]:
    """Look for messages in the order in which a template writes them."""
    text = b"".join(pieces)
    starts = [0, *accumulate(map(len, pieces))]
    shown: list[ShownMessage] = []
    at = 0
    for message in messages:
        content = message["content"]
        bare = content.strip()
        found = text.find(bare.encode(), at)
        if not bare or found < 0:
            shown.append(ShownMessage(message["role"], content, first, first + len(pieces), None))
            continue
        at = found + len(bare.encode())
        begin = bisect_left(starts, found + 1) - 1
        end = bisect_left(starts, at)
        skipped = len(text[starts[begin] : found].decode("utf-8", "replace"))
        lead = len(content) - len(content.lstrip()) - skipped
        offsets = [max(0, one) for one in _offsets(pieces[begin:end], lead)]
        shown.append(ShownMessage(message["role"], content, first + begin, first + end, offsets))
    return shown


def _offsets(pieces: list[bytes], first: int) -> list[int]:
    """Return how many characters are complete before each token, plus `first`."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    counts = [len(decoder.decode(piece)) for piece in pieces]
    return list(accumulate(counts, initial=first))[: len(pieces)]
