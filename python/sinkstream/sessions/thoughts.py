"""Whether a session keeps the thoughts of its replies, and what stays of a turn without them.

Note: [Dropped thoughts]
Chat templates leave out the thoughts of earlier replies. Removing them from the cache would not
give the same result: later keys were computed in their presence. So the session returns to the
state before the turn, and reads the message and the reply again as the template writes them. While
nothing leaves the window, the turn is taken back. Otherwise the turn runs in a fork, and the
session itself waits where it was.

A turn with tools is a loop of replies with calls and their results. If the template shows the
thoughts before calls until the user writes again, so does the session: it always keeps the start of
such a turn, and reads all of it again afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from sinkstream.checkpoint.spec import DecoderSpec
from sinkstream.errors import CapacityError, InvalidArgument, warn_caller
from sinkstream.host import Host
from sinkstream.request.stream_request import StreamRequest
from sinkstream.request.template_variables import Thinking
from sinkstream.sessions.token_session import ConversationState, Mark, TokenSession
from sinkstream.streams.stream import Stream
from sinkstream.text.messages import Message, ToolCall
from sinkstream.text.template_turns import Calls
from sinkstream.text.thought_reader import Split, ThoughtReader, ThoughtTags
from sinkstream.text.turn_format import TurnFormat

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
    start: Mark
    """Where the session was before the turn."""
    closing: list[int]
    """The closing of the previous reply, if that was still open."""
    end: int
    """Tokens of the conversation up to the last reply, including the generation prompt."""
    has_results: bool = False
    """Whether the last reply follows results of calls, in a loop of them."""

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
        if split.kind == "tool_call" and not split.calls:
            raise InvalidArgument(IS_CUT)
        message = message_of(split, self.calls)
        if not all(map(is_complete, split.calls)):
            raise InvalidArgument(IS_CUT)
        has_thoughts = self.has_thoughts or split.tokens > 0
        return replace(self, said=(*self.said, message), has_thoughts=has_thoughts)


def message_of(split: Split, calls: Sequence[ToolCall]) -> dict[str, Any]:
    """Return a reply as a message without its thought.

    Args:
        split: The reply.
        calls: Its calls that have been read, with the ids for their results.
    """
    message: dict[str, Any] = {"role": "assistant", "content": split.text}
    for call, known in zip(split.calls, calls, strict=False):
        call.id = known.id
    if split.calls:
        message["tool_calls"] = [call.as_message() for call in split.calls]
    return message


def splitter_of(host: Host, tags: ThoughtTags | None, request: StreamRequest) -> SplitReply | None:
    """Return what splits the reply to a request; None if all of it is text."""
    if request.tools is not None:
        of_tools = host.tool_replies.split
        return partial(of_tools, tools=request.tools, thinking=request.thinking)
    if tags is None:
        return None
    return (tags if request.grammar is None else tags.all_text()).split


def is_complete(call: ToolCall) -> bool:
    """Return whether the arguments of a call are a complete JSON object."""
    try:
        return isinstance(json.loads(call.arguments), dict)
    except ValueError:
        return False


def least_capacity(spec: DecoderSpec, sinks: int, window: int) -> int:
    """Return how many tokens a sequence may have before a layer evicts the first one."""
    return min(group.capacity for group in spec.groups(sinks, window))


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
    return asked.closing + turns.earlier_turn(said, after=asked.start.state.after, before=(before,))


def closing(
    tokens: TokenSession, turns: TurnFormat, last: int | None, calls: Calls = ()
) -> list[int]:
    """Return the ids between the last reply, if it is open, and the next message.

    `calls` are those of the reply, if their results follow.
    """
    return turns.closing(last, calls) if tokens.state.reply_is_open else []


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
        self._has_warned = False

    def start(self, said: Sequence[Message], request: StreamRequest, start: Start) -> Stream:
        """Start a turn after which the session can return to its earlier state."""
        tokens, host = self._tokens, self._tokens.host
        last = tokens.conclude_last_turn()
        end, limit = tokens.length + len(request.prompt), request.max_tokens
        capacity = least_capacity(host.spec, tokens.native.sinks, tokens.native.window)
        if limit is None or end + limit > capacity or self._waits_for_results:
            tokens.keep_start()
        tags = self._thoughts.tags
        assert tags is not None
        return self._follow(
            Asked(
                split=tags.split,
                calls=[],
                said=tuple(said),
                has_thoughts=tags.form.is_prompted,
                start=tokens.mark(),
                closing=closing(tokens, self._turns, last),
                end=end,
            ),
            request,
            start,
        )

    def loop(self) -> Asked | None:
        """Return the last turn with its reply, if its thoughts stay until the results are read."""
        asked = self.asked
        if asked is None or not self._waits_for_results:
            return None
        if not self._tokens.keeps_start(asked.start):
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
        """Start the reply to results after the calls as they were made."""
        end = self._tokens.length + len(request.prompt)
        asked = replace(loop, has_results=True, said=(*loop.said, *results), end=end)
        return self._follow(asked, request, start)

    def _follow(self, asked: Asked, request: StreamRequest, start: Start) -> Stream:
        """Start a reply, whose thoughts are to be dropped later."""
        host = self._tokens.host
        reader = host.reader(request)
        split = splitter_of(host, self._thoughts.tags, request)
        assert split is not None  # the model thinks
        stream = start(request, reader)
        self.asked = replace(asked, split=split, calls=[] if reader is None else reader.calls)
        return stream

    def drop(self, before: str | None = None) -> Sequence[Message] | None:
        """Read the last turn again without its thoughts, if the session drops them and it has any.

        Args:
            before: The role of the message that follows; None if unknown.

        Returns:
            The messages that were read again, which have replaced all that followed the turn's
            start; None if there are none.

        Raises:
            SessionBusy: The turn is still running.
        """
        asked, tokens = self.asked, self._tokens
        if asked is None:
            return None
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
        if exchange is None or not self._go_back(asked):
            tokens.release_start()
            return None
        tokens.read(exchange, ConversationState("assistant"))
        tokens.turns_read_again += asked.replies
        return asked.with_reply(reply, is_whole=is_whole).said

    def close(self) -> None:
        """Follow no turn any more."""
        self.asked = None

    def _last_reply(self, asked: Asked) -> tuple[list[int], bool]:
        """Return the ids of the last reply that the model still sees, and whether these are all."""
        tokens = self._tokens
        ids, count = tokens.token_ids, tokens.length - asked.end
        seen = len(ids) - (tokens.native.sinks if tokens.stats.evicted_tokens else 0)
        return ids[len(ids) - min(count, seen) :], count <= seen

    def _go_back(self, asked: Asked) -> bool:
        """Return to the state before the last turn, if that takes no reading."""
        try:
            is_there = self._tokens.go_back(asked.start, reads_again=False)
        except CapacityError:
            is_there = False
        if not is_there:
            self._warn_once(STAYS)
        return is_there

    def _warn_once(self, sentence: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn_caller(sentence)
