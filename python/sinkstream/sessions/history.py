"""What a session remembers of its conversation: its messages, and where each turn began.

A session keeps the ids of its last `UNDONE_TOKENS` tokens, including evicted ones. The text of a
reply is made of them when it is asked for. Turns that began earlier are forgotten here, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sinkstream import _core
from sinkstream.errors import CheckpointError, InvalidArgument
from sinkstream.sessions.thoughts import Asked, DroppedThoughts, SplitReply, message_of
from sinkstream.sessions.token_session import (
    ConversationState,
    Mark,
    TokenSession,
    ids_are_gone,
    no_turn,
    turn_is_not_last,
    turn_is_undone,
)
from sinkstream.text.messages import Message, ToolCall

MOST_TURNS = 1 << 14
"""The turns that are remembered, at most, however short they are."""


@dataclass(slots=True)
class Turn:
    """Messages, and the reply to them if there is one."""

    before: Mark
    """Where the session was before it."""
    said: tuple[Message, ...]
    reply_at: int | None = None
    """The index of the reply's first token in the conversation; None if no reply is generated."""
    split: SplitReply | None = None
    """Separates the thoughts, the text and the calls of the reply; None if all of it is text."""
    calls: Sequence[ToolCall] = ()
    """The calls of the reply that have been read."""
    shows_thought: bool = False
    """Whether the conversation keeps the thought of the reply."""
    reply: Message | None = None
    """The reply, once it does not change any more."""
    streams: tuple[_core.TokenStream | None, ...] = ()
    """Of its replies; empty if it is not this session's own."""
    asked: Asked | None = None
    """The turn whose thoughts were to be dropped when this one began."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """A conversation that a session continues."""

    opening: tuple[Message, ...] = ()
    """What it was opened with."""
    turns: tuple[Turn, ...] = ()


class History:
    """Remembers the turns of a session, and undoes them. For the one caller of the session.

    Attributes:
        undone: The streams of the turn that has just been undone.
    """

    def __init__(
        self,
        tokens: TokenSession,
        dropped: DroppedThoughts,
        remembered: Remembered = Remembered(),  # immutable
    ) -> None:
        """Follow the turns of a session, and of `dropped`, which drops its thoughts."""
        self._tokens = tokens
        self._dropped = dropped
        self._opening = remembered.opening
        self._turns = list(remembered.turns)
        self.undone: tuple[_core.TokenStream | None, ...] = ()

    def remembered(self) -> Remembered:
        """Return what a fork remembers: no turn is its own."""
        turns = tuple(replace(turn, streams=(), asked=None) for turn in self._turns)
        return Remembered(self._opening, turns)

    @contextmanager
    def following(self, turn: Turn) -> Iterator[None]:
        """Remember a turn that begins in this context."""
        tokens, turns, last = self._tokens, self._turns, self._tokens.turn
        turn.asked = self._dropped.asked
        if turns and turns[-1].before.position == turn.before.position:
            turns.pop()  # it has left nothing
        turns.append(turn)
        try:
            yield
        finally:
            if tokens.turn is last:
                turns.pop()  # it has not begun
            else:
                turn.streams, self.undone = (tokens.turn,), ()
                oldest = turn.before.length - _core.UNDONE_TOKENS
                first = next(i for i, one in enumerate(turns) if one.before.length >= oldest)
                del turns[: max(first, len(turns) - MOST_TURNS)]

    def drop_thoughts(self, before: str | None = None) -> None:
        """Drop the thoughts of the last turn: see `DroppedThoughts.drop`."""
        asked, turns = self._dropped.asked, self._turns
        messages = self._dropped.drop(before)
        if asked is None or messages is None:
            return
        streams: tuple[_core.TokenStream | None, ...] = ()
        while turns and turns[-1].before.length >= asked.start.length:
            streams = (*turns.pop().streams, *streams)
        turns.append(Turn(asked.start, tuple(messages[:-1]), reply=messages[-1], streams=streams))

    def undo_last(self) -> None:
        """Undo the session's last turn, for `Session.cancel`.

        Raises:
            InvalidArgument: There is none, or it has been undone.
            CapacityError: See `TokenSession.go_back`.
        """
        if self.undone:
            raise turn_is_undone()
        if not self._turns or not self._turns[-1].streams:
            raise no_turn()
        self.undo("cancel")

    def take_back(self, stream: _core.TokenStream) -> None:
        """Undo the turn of a stream, which must be the last one; see `undo_last`."""
        if stream in self.undone:
            raise turn_is_undone()
        if not self._turns or stream not in self._turns[-1].streams:
            raise turn_is_not_last()
        self.undo("cancel")

    def undo(self, where: str) -> list[dict[str, Any]]:
        """Undo the last turn that is remembered; return its messages.

        Args:
            where: The prefix of errors.

        Raises:
            InvalidArgument: There is none, or the ids before it are not kept any more.
            CapacityError: See `TokenSession.go_back`.
        """
        tokens = self._tokens
        if not self._turns:
            raise InvalidArgument(f"{where}: there must be a turn to undo, but there is none.")
        if tokens.turn is not None:
            tokens.turn.cancel()
        tokens.conclude_last_turn()  # waits for it
        turn = self._turns[-1]
        messages = self._messages_of(turn, _Ids(tokens), tokens.length)
        if not tokens.go_back(turn.before, reads_again=True):
            raise ids_are_gone(where, tokens.stats.tokens)
        self._turns.pop()
        self._dropped.asked, self.undone = turn.asked, turn.streams
        return messages

    def messages(self) -> list[dict[str, Any]]:
        """Return the messages of the conversation. Any thread may call it."""
        earlier, later = self.split_at(0)
        return earlier + later

    def last_calls(self) -> list[dict[str, Any]]:
        """Return the `tool_calls` of the last reply."""
        turns = self._with_ends()
        if not turns:
            return list(self._opening[-1].get("tool_calls", ())) if self._opening else []
        turn, end = turns[-1]
        reply = self._reply_of(turn, _Ids(self._tokens), end)
        return [] if reply is None else list(reply.get("tool_calls", ()))

    def split_at(self, index: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the messages of the turns that end at an index or before it, and the others."""
        ids = _Ids(self._tokens)
        earlier = [dict(message) for message in self._opening]
        later: list[dict[str, Any]] = []
        for turn, end in self._with_ends():
            (earlier if end <= index else later).extend(self._messages_of(turn, ids, end))
        return earlier, later

    def _messages_of(self, turn: Turn, ids: _Ids, end: int) -> list[dict[str, Any]]:
        reply = self._reply_of(turn, ids, end)
        return [dict(one) for one in (*turn.said, *([] if reply is None else [reply]))]

    def _with_ends(self) -> list[tuple[Turn, int]]:
        """Return the turns, each with the index in the conversation at which it ends."""
        turns = [*self._turns]
        ends = [*(turn.before.length for turn in turns), self._tokens.length]
        return list(zip(turns, ends[1:], strict=True))

    def _reply_of(self, turn: Turn, ids: _Ids, end: int) -> Message | None:
        """Return the reply of a turn that ends at an index of the conversation."""
        if turn.reply is not None or turn.reply_at is None or end <= turn.reply_at:
            return turn.reply
        reply = ids.between(turn.reply_at, end)
        if turn.split is None:
            tokenizer = self._tokens.host.text.tokenizer
            text = "" if tokenizer is None else tokenizer.decode(reply)
            return {"role": "assistant", "content": text}
        split = turn.split(reply, is_whole=True)
        message = message_of(split, turn.calls)
        if turn.shows_thought and split.thought:
            message["reasoning_content"] = split.thought
        return message

    # ---- files -----------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Return what a session file holds of it, after the last turn has ended."""
        ids = _Ids(self._tokens)
        fields = [
            {
                "position": turn.before.position,
                "after": turn.before.state.after,
                "reply_is_open": turn.before.state.reply_is_open,
                "turns_read_again": turn.before.turns_read_again,
                "said": turn.said,
                "reply": self._reply_of(turn, ids, end),
            }
            for turn, end in self._with_ends()
        ]
        whole = {"opening": self._opening, "turns": fields}
        text = json.dumps(whole, ensure_ascii=False, separators=(",", ":"))
        return text.encode(errors="surrogatepass")


class _Ids:
    """The ids of a conversation that its session still has; read when they are first needed."""

    def __init__(self, tokens: TokenSession) -> None:
        self._tokens = tokens
        self._kept: list[int] | None = None
        self._missing = 0  # after the sinks

    def between(self, begin: int, end: int) -> list[int]:
        """Return the ids of the tokens in [begin, end) that are kept."""
        if self._kept is None:
            tokens = self._tokens
            self._kept = tokens.host.native.ids_of(tokens.native, kept=True)
            self._missing = tokens.length - len(self._kept)
        return self._kept[max(begin - self._missing, 0) : max(end - self._missing, 0)]


def decode_history(text: bytes, name: str, length: int, vocab_size: int) -> Remembered:
    """Return what `History.encode` wrote.

    Args:
        text: The content of the file; empty if it has none.
        name: The file's name, for errors.
        length: Of the conversation, including the pending token.
        vocab_size: Of the model.

    Raises:
        CheckpointError: The content is not as `encode` writes it.
    """
    if not text:
        return Remembered()
    try:
        whole = json.loads(text.decode(errors="surrogatepass"))
        turns = [_turn_of(fields, vocab_size) for fields in whole["turns"]]
        opening = tuple(map(_message_of, whole["opening"]))
        ends = [*(turn.before.length for turn in turns), length][1:]
        if any(turn.before.length > end for turn, end in zip(turns, ends, strict=True)):
            raise ValueError("turns that are out of order")
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"load_session: `conversation` of {name} must be as a session saves it, but is not: "
            f"{type(error).__name__} {str(error)[:80]}."
        ) from None
    return Remembered(opening, tuple(turns))


def _turn_of(fields: Mapping[str, Any], vocab_size: int) -> Turn:
    tokens, pending, turns = fields["position"]
    numbers = [tokens, turns, fields["turns_read_again"], pending or 0]
    if not all(type(number) is int and 0 <= number < 1 << 59 for number in numbers):
        raise ValueError("a position that is not three numbers")
    if (pending or 0) >= vocab_size:
        raise ValueError("a pending token that is not in the vocabulary")
    after, is_open = fields["after"], fields["reply_is_open"]
    if not isinstance(after, str | None) or type(is_open) is not bool:
        raise ValueError("a state that is not one")
    mark = Mark((tokens, pending, turns), ConversationState(after, is_open), numbers[2])
    reply = fields["reply"]
    said = tuple(map(_message_of, fields["said"]))
    return Turn(mark, said, reply=None if reply is None else _message_of(reply))


def _message_of(fields: Any) -> Message:
    if not isinstance(fields, dict) or not isinstance(fields.get("role"), str):
        raise ValueError("a message without a role")
    return fields
