"""Whether a session keeps the thoughts of its replies, and what stays of a turn without them.

Note: [Dropped thoughts]
Chat templates leave out the thoughts of earlier replies. Removing them from the cache would not
give the same result: later keys were computed in their presence. So the session returns to the
state before the turn, and reads the message and the reply again as the template writes them. While
nothing leaves the window, the turn is taken back. Otherwise the turn runs in a fork, and the
session itself waits where it was.

A turn with tools is a loop of replies with calls and their results. If the template shows the
thoughts before calls until the user writes again, so does the session: it always runs the turn in a
fork, and reads all of it again afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from sinkstream import _core
from sinkstream.checkpoint.spec import DecoderSpec, cache_groups
from sinkstream.errors import CapacityError, InvalidArgument, warn_caller
from sinkstream.request.stream_request import StreamRequest
from sinkstream.sessions.token_session import ConversationState, TokenSession
from sinkstream.streams.stream import Stream
from sinkstream.text.messages import Message
from sinkstream.text.thinking import Thinking
from sinkstream.text.thoughts.thought_reader import Split, ThoughtReader, ThoughtTags
from sinkstream.text.tool_call import ToolCall
from sinkstream.text.turns.turn_format import TurnFormat

STAYS = (
    "session: the thoughts of a reply stay in the conversation, because tokens have left the "
    "window since its turn began, and there was no memory for a second sequence. Load the model "
    "with a larger `max_sequences` or a longer `window`."
)
IS_LONG = (
    "session: the thoughts of a reply stay in the conversation, because the reply is longer than "
    "the window. Load the model with a longer `window`."
)

IS_CUT = (
    "session: the thoughts of a reply stay in the conversation, because the reply ends inside a "
    "tool call."
)


class SplitReply(Protocol):
    """Separates the thoughts, the text and the calls of a reply."""

    def __call__(self, ids: Sequence[int], *, is_whole: bool) -> Split:
        """Split a reply, or the last tokens of an incomplete one."""


@dataclass(frozen=True, slots=True)
class Thoughts:
    """How a session treats thoughts."""

    tags: ThoughtTags | None = None
    """None if the model does not think."""
    thinking: Thinking = None
    """Given when the session was opened."""
    drops: bool = False
    """Whether the thoughts of earlier replies are dropped."""

    @property
    def fields(self) -> dict[str, str | int]:
        """Return how a session file describes it."""
        if self.tags is None and self.thinking is None:
            return {}
        thinking = "" if self.thinking is None else str(self.thinking)
        return {"thinking": thinking, "drops_thoughts": int(self.drops)}


def check_thoughts(thoughts: str | None, tags: ThoughtTags | None) -> bool:
    """Return whether a session drops thoughts.

    Raises:
        InvalidArgument: `thoughts` has a value that is not allowed.
    """
    if thoughts not in (None, "drop", "keep"):
        raise InvalidArgument(
            f'session: `thoughts` must be "drop", "keep" or None, but is {str(thoughts)[:40]!r}.',
            param="thoughts",
        )
    if tags is None:
        return False
    return thoughts == "drop" or (thoughts is None and not tags.form.is_kept)


@dataclass(frozen=True, slots=True)
class Asked:
    """A turn whose thoughts are to be dropped when the next one begins."""

    split: SplitReply
    """Reads its last reply again."""
    calls: Sequence[ToolCall]
    """The calls of its last reply that have been read, with the ids for their results."""
    said: tuple[Message, ...]
    """The question. In a loop of calls, then replies and results, up to the last reply."""
    has_thoughts: bool
    """Whether there is something to drop before the last reply, such as a tag in the prompt."""
    state: ConversationState
    """The state before the turn."""
    closing: list[int]
    """The closing of the previous reply, if that was still open."""
    end: int
    """Tokens of the conversation up to the last reply, including the generation prompt."""
    source: _core.Session | None
    """The session before the turn, if that runs in a fork."""
    has_results: bool = False
    """Whether the last reply follows results of calls, in a loop of them."""
    before: Asked | None = None
    """The turn as it was before the last results. That one has none before it: only the last reply
    can be undone."""
    stream: _core.TokenStream | None = None
    """The stream of the last reply."""

    @property
    def replies(self) -> int:
        """Return how many replies the turn has, including the last one."""
        return 1 + [message["role"] for message in self.said].count("assistant")

    def with_reply(self, reply: Sequence[int], *, is_whole: bool) -> Asked:
        """Return the turn with its last reply as a message without its thought.

        Args:
            reply: The ids of the reply, or the last of them.
            is_whole: Whether the reply is complete.

        Raises:
            InvalidArgument: It is unclear where the text begins, or the reply is cut off inside a
                call.
        """
        split = self.split(reply, is_whole=is_whole)
        if not is_whole and split.kind == "thought":
            raise InvalidArgument(IS_LONG)
        message: dict[str, Any] = {"role": "assistant", "content": split.text}
        if split.calls or split.kind == "tool_call":
            calls = [replace(call) for call in split.calls]
            for call, known in zip(calls, self.calls, strict=False):
                call.id = known.id
            if not calls or not all(is_complete(call) for call in calls):
                raise InvalidArgument(IS_CUT)
            message["tool_calls"] = [call.as_message() for call in calls]
        has_thoughts = self.has_thoughts or split.tokens > 0
        return replace(self, said=(*self.said, message), has_thoughts=has_thoughts)


def is_complete(call: ToolCall) -> bool:
    """Return whether the arguments of a call are a complete JSON object."""
    try:
        return isinstance(json.loads(call.arguments), dict)
    except ValueError:
        return False


def least_capacity(spec: DecoderSpec, sinks: int, window: int) -> int:
    """Return how many tokens a sequence may have before a layer evicts the first one."""
    groups = cache_groups(spec.own_windows, spec.layers, sinks, window)
    return min(group.capacity for group in groups)


def without_thoughts(
    asked: Asked, reply: Sequence[int], turns: TurnFormat, *, is_whole: bool, before: str | None
) -> list[int] | None:
    """Return the ids of a turn without its thoughts; None if it has none.

    Args:
        asked: The turn.
        reply: The ids of its last reply, or the last of them.
        turns: The parts of conversations.
        is_whole: Whether the reply is complete.
        before: The role of the message that follows. If None, results if the reply has calls.

    Raises:
        InvalidArgument: It is unclear where the text begins, or the template refuses the turn.
    """
    if not asked.has_thoughts and asked.split(reply, is_whole=is_whole).tokens == 0:
        return None
    said = asked.with_reply(reply, is_whole=is_whole).said
    if before is None:
        before = "tool" if "tool_calls" in said[-1] else "user"
    return asked.closing + turns.earlier_turn(said, after=asked.state.after, before=(before,))


def closing(tokens: TokenSession, turns: TurnFormat, last: int | None) -> list[int]:
    """Return the ids between the last reply, if it is open, and the next message."""
    return turns.closing(last) if tokens.state.reply_is_open else []


Start = Callable[[StreamRequest, ThoughtReader | None], Stream]
"""Starts the turn of a session."""


class DroppedThoughts:
    """Drops the thoughts of a session's replies: see Note: [Dropped thoughts].

    All methods are for the one caller of the session.

    Attributes:
        asked: The last turn, until its thoughts have been dropped.
    """

    def __init__(
        self,
        tokens: TokenSession,
        turns: TurnFormat,
        thoughts: Thoughts,
        *,
        waits_for_results: bool,
    ) -> None:
        """Follow the turns of a session.

        Args:
            tokens: The session.
            turns: The parts of its conversation.
            thoughts: How it treats thoughts.
            waits_for_results: Whether the thought before a call stays until the user writes again.
        """
        self._tokens = tokens
        self._turns = turns
        self._thoughts = thoughts
        self._waits_for_results = waits_for_results
        self.asked: Asked | None = None
        # The last turn, and the same without its thoughts, once these have been dropped.
        self._read_again: tuple[_core.TokenStream | None, _core.TokenStream | None] = None, None
        self._replies_read_again = 0  # in the last turn
        self._has_warned = False

    def start(self, said: Sequence[Message], request: StreamRequest, start: Start) -> Stream:
        """Start a turn after which the session can return to its earlier state."""
        tokens, host = self._tokens, self._tokens.host
        last = tokens.conclude_last_turn()
        before, end = tokens.native, tokens.length + len(request.prompt)
        fork = None
        limit = request.max_tokens
        capacity = least_capacity(host.spec, tokens.native.sinks, tokens.native.window)
        if limit is None or end + limit > capacity or self._waits_for_results:
            fork = self._fork_or_none()
        tags = self._thoughts.tags
        assert tags is not None
        reader = host.reader(request)
        asked = Asked(
            split=self._split_of(request),
            calls=[] if reader is None else reader.calls,
            said=tuple(said),
            has_thoughts=tags.form.is_prompted,
            state=tokens.state,
            closing=closing(tokens, self._turns, last),
            end=end,
            source=before if fork else None,
        )
        try:
            tokens.native = fork or before
            stream = start(request, reader)
        except BaseException:
            tokens.native = before
            if fork is not None:
                fork.close()
            raise
        self.asked = replace(asked, stream=tokens.turn)
        return stream

    def loop(self) -> Asked | None:
        """Return the last turn with its reply, if its thoughts stay until the results are read."""
        asked = self.asked
        if asked is None or asked.source is None or not self._waits_for_results:
            return None
        self._tokens.conclude_last_turn()
        reply, is_whole = self._last_reply(asked)
        try:
            return asked.with_reply(reply, is_whole=is_whole)
        except InvalidArgument:  # dropping the thoughts says why
            return None

    def continue_loop(
        self, loop: Asked, results: Sequence[Message], request: StreamRequest, start: Start
    ) -> Stream:
        """Start the reply to results in the fork in which the calls were made."""
        assert self.asked is not None  # `loop` is this turn, with its reply
        reader = self._tokens.host.reader(request)
        asked = replace(
            loop,
            has_results=True,
            split=self._split_of(request),
            calls=[] if reader is None else reader.calls,
            said=(*loop.said, *results),
            end=self._tokens.length + len(request.prompt),
            before=replace(self.asked, before=None),
        )
        stream = start(request, reader)
        self.asked = replace(asked, stream=self._tokens.turn)
        return stream

    def drop(self, before: str | None = None) -> None:
        """Read the last turn again without its thoughts, if the session drops them and it has any.

        Args:
            before: The role of the message that follows; None if unknown.

        Raises:
            SessionBusy: The turn is still running.
        """
        asked, tokens = self.asked, self._tokens
        if asked is None:
            return
        tokens.conclude_last_turn()
        reply, is_whole = self._last_reply(asked)
        self.asked = None
        exchange = None
        if reply or asked.has_results:
            try:
                exchange = without_thoughts(
                    asked, reply, self._turns, is_whole=is_whole, before=before
                )
            except InvalidArgument as error:
                self._warn_once(str(error))
        turn = tokens.turn
        if exchange is None or not self._go_back(asked):
            if asked.source is not None:
                asked.source.close()
            return
        tokens.read(exchange, ConversationState("assistant"))
        self._read_again = turn, tokens.turn
        self._replies_read_again = asked.replies
        tokens.turns_read_again += asked.replies

    def take_back(self, turn: _core.TokenStream) -> None:
        """Undo the session's last turn; see `TokenSession.take_back`."""
        asked, tokens = self.asked, self._tokens
        native = tokens.host.native
        if asked is not None and asked.source is not None and turn is asked.stream:
            if not asked.has_results:
                self._continue_at(asked.source, asked.state)
            else:
                native.take_back(tokens.native, turn)
                self.asked = asked.before
            return
        is_read_again = tokens.turn is self._read_again[1] and turn in self._read_again
        last = tokens.turn if is_read_again and tokens.turn is not None else turn
        native.take_back(tokens.native, last)
        self.asked = None
        if is_read_again:
            self._read_again = None, None
            tokens.turns_read_again -= self._replies_read_again

    def close(self) -> None:
        """Release the second sequence that the last turn may hold."""
        asked, self.asked = self.asked, None
        if asked is not None and asked.source is not None:
            asked.source.close()

    def _split_of(self, request: StreamRequest) -> SplitReply:
        """Return what splits the whole reply later."""
        if request.tools is not None:
            of_tools = self._tokens.host.tool_replies.split
            return partial(of_tools, tools=request.tools, thinking=request.thinking)
        tags = self._thoughts.tags
        assert tags is not None
        return (tags if request.grammar is None else tags.all_text()).split

    def _last_reply(self, asked: Asked) -> tuple[list[int], bool]:
        """Return the ids of the last reply that the model still sees, and whether these are all."""
        tokens = self._tokens
        ids, count = tokens.token_ids, tokens.length - asked.end
        seen = len(ids) - (tokens.native.sinks if tokens.stats.evicted_tokens else 0)
        return ids[len(ids) - min(count, seen) :], count <= seen

    def _fork_or_none(self) -> _core.Session | None:
        try:
            return self._tokens.host.native.fork_session(self._tokens.native)
        except CapacityError:
            return None

    def _go_back(self, asked: Asked) -> bool:
        """Return to the state before the last turn, if that is possible."""
        if asked.source is not None:
            self._continue_at(asked.source, asked.state)
            return True
        tokens = self._tokens
        assert tokens.turn is not None  # the turn that was asked for
        try:
            tokens.host.native.take_back(tokens.native, tokens.turn)
        except (CapacityError, InvalidArgument):
            self._warn_once(STAYS)
            return False
        tokens.state = asked.state
        return True

    def _continue_at(self, source: _core.Session, state: ConversationState) -> None:
        """Continue the session that was forked for the last turn, instead of the fork."""
        tokens = self._tokens
        fork, tokens.native = tokens.native, source
        fork.close()
        tokens.state, self.asked, tokens.turn = state, None, None

    def _warn_once(self, sentence: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn_caller(sentence)
