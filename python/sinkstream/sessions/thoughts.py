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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from sinkstream import _core
from sinkstream.checkpoint.spec import DecoderSpec, cache_groups
from sinkstream.errors import InvalidArgument
from sinkstream.sessions.token_session import ConversationState
from sinkstream.text.messages import Message
from sinkstream.text.thinking import Thinking
from sinkstream.text.thoughts.thought_reader import Split, ThoughtTags
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
        if self.tags is None:
            return {}
        thinking = "" if self.thinking is None else str(self.thinking)
        return {"thinking": thinking, "drops_thoughts": int(self.drops)}


def thinking_of_field(text: str) -> Thinking:
    """Return `thinking` from a field of a session file."""
    return {"": None, "True": True, "False": False}.get(text, text)


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
