"""Turns of a history that the store does not know, kept one by one.

A client may import a history, or send back other replies than it was given. If all of it were part
of the turn that follows, nothing would match it when it is sent again, and each turn would keep the
whole history. So each exchange is a turn of its own, which later requests find.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sinkstream.conversations.canonical import encode, hash_after, without_reasoning
from sinkstream.conversations.conversation_writer import ConversationWriter
from sinkstream.conversations.node import CLOSED, NewNode, Node, new_id
from sinkstream.conversations.read_messages import Drops, StartPoint, read_earlier, read_messages
from sinkstream.conversations.turns import note_of_calls
from sinkstream.errors import InvalidArgument
from sinkstream.text.messages import Message
from sinkstream.text.turn_format import TurnFormat

_MOST = 64
"""Turns of one request. The messages before the last ones are one turn."""


@dataclass(frozen=True, slots=True)
class EarlierTurn:
    """A turn whose reply was sent, not generated."""

    messages: Sequence[Message]
    """Canonical ones; the last is the reply."""
    read_ids: array[int]
    """Up to the reply's beginning, if that can be told."""
    reply_ids: array[int]
    """The rest, with the reply's end."""

    @property
    def tokens(self) -> int:
        """Return how many ids it has."""
        return len(self.read_ids) + len(self.reply_ids)


@dataclass(frozen=True, slots=True)
class Given:
    """An earlier turn as it is stored."""

    new: NewNode
    node: Node
    turn: EarlierTurn

    def write(self, writer: ConversationWriter) -> None:
        """Queue the turn."""
        reply = self.turn.messages[-1]
        calls = reply.get("tool_calls")
        writer.begin(self.new)
        note = note_of_calls(calls) if calls else ""
        writer.finish(self.node, 0, self.turn.reply_ids, str(reply["content"]), note)


def split_off(
    turns: TurnFormat,
    messages: Sequence[Message],
    start: StartPoint,
    whole: NewNode,
    before: bytes,
    *,
    is_settled: bool,
    has_thoughts: bool,
    drops: Drops,
) -> tuple[list[Given], NewNode]:
    """Return the turns of a history, and what is left of the turn that would read all of it.

    Args:
        turns: The parts of conversations.
        messages: Canonical ones, which `whole` reads.
        start: Where in the conversation they begin.
        whole: The turn.
        before: The hash of the conversation before it.
        is_settled: Whether what it follows is settled.
        has_thoughts: As for `read_messages`.
        drops: As for `read_messages`.
    """
    earlier = _find_earlier(
        turns, messages, start, whole.read_ids, has_thoughts=has_thoughts, drops=drops
    )
    if not earlier:
        return [], whole
    placed = _placed(earlier, whole, before, is_settled=is_settled)
    kept = json.loads(whole.messages)[sum(len(turn.messages) for turn in earlier) :]
    return placed, replace(
        whole,
        parent=placed[-1].node.id,
        read_ids=whole.read_ids[sum(turn.tokens for turn in earlier) :],
        messages=encode(kept),
        title="",
        is_after_settled=False,
    )


def _find_earlier(
    turns: TurnFormat,
    messages: Sequence[Message],
    start: StartPoint,
    ids: array[int],
    *,
    has_thoughts: bool,
    drops: Drops,
) -> list[EarlierTurn]:
    """Return the turns before the last one in messages that the store does not have.

    Args:
        turns: The parts of conversations.
        messages: Canonical ones, which a reply follows.
        start: Where in the conversation they begin.
        ids: What is read for all of them. What is returned has these ids, or is [].
        has_thoughts: As for `read_messages`.
        drops: As for `read_messages`.
    """
    found: list[EarlierTurn] = []
    at = begin = 0
    for end in _ends(messages):
        said = messages[begin:end]
        try:
            read = read_earlier(turns, said, start, has_thoughts=has_thoughts, drops=drops)
            asked = _asked(turns, said[:-1], start, has_thoughts=has_thoughts, drops=drops)
        except InvalidArgument:
            return []  # the template allows the whole only
        if ids[at : at + len(read)].tolist() != read:
            return []  # they are written differently if more follows
        until = len(asked) if read[: len(asked)] == asked else len(read)
        found.append(EarlierTurn(said, array("i", read[:until]), array("i", read[until:])))
        at, begin, start = at + len(read), end, StartPoint("assistant")
    return found


def _ends(messages: Sequence[Message]) -> list[int]:
    """Return the numbers of messages after which a user's message begins another turn."""
    return [
        i
        for i in range(1, len(messages))
        if messages[i - 1]["role"] == "assistant" and messages[i]["role"] == "user"
    ][-_MOST:]


def _asked(
    turns: TurnFormat,
    messages: Sequence[Message],
    start: StartPoint,
    *,
    has_thoughts: bool,
    drops: Drops,
) -> list[int]:
    if not messages:
        return []
    return read_messages(
        turns, messages, start, continue_final=False, has_thoughts=has_thoughts, drops=drops
    )


def _placed(
    earlier: Sequence[EarlierTurn], whole: NewNode, before: bytes, *, is_settled: bool
) -> list[Given]:
    """Return earlier turns with their places in a conversation.

    Args:
        earlier: The turns.
        whole: The turn that would read all of them.
        before: The hash of the conversation before them.
        is_settled: Whether what they follow is settled.
    """
    placed: list[Given] = []
    tokens = whole.tokens - len(whole.read_ids)
    parent, title, is_after_settled = whole.parent, whole.title, whole.is_after_settled
    for turn in earlier:
        *said, reply = turn.messages
        new = replace(
            whole,
            id=new_id("resp"),
            parent=parent,
            read_ids=turn.read_ids,
            messages=encode([*map(without_reasoning, said)]),
            before=hash_after(before, said),
            given="",
            tokens=tokens + len(turn.read_ids),
            title=title,
            is_after_settled=is_after_settled,
        )
        tokens += turn.tokens
        before = hash_after(new.before, [reply])
        node = Node(
            new.id, parent, new.conversation, new.tenant, before, tokens, CLOSED,
            new.session_key, "stop", is_after_settled, is_settled,
        )  # fmt: skip
        placed.append(Given(new, node, turn))
        parent, title, is_after_settled = new.id, "", False
    return placed
