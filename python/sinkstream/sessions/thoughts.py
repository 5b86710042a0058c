"""Whether a session keeps the thoughts of its replies, and what of a turn stays without them.

Note: [Dropped thoughts]
Chat templates leave out the thoughts of earlier replies. Removing them from the cache would not be
the same: later keys were computed in their presence. So the session returns to the state before the
turn, and reads the message and the reply again as the template writes them. While nothing leaves
the window, the turn is taken back. Otherwise the turn runs in a fork, and the session itself waits
where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sinkstream import _core
from sinkstream.checkpoint.spec import DecoderSpec, cache_groups
from sinkstream.errors import InvalidArgument
from sinkstream.sessions.conversation_state import ConversationState
from sinkstream.text.thoughts.thinking import Thinking
from sinkstream.text.thoughts.thought_reader import ThoughtTags
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
        """Return what a session's file says of it."""
        if self.tags is None:
            return {}
        thinking = "" if self.thinking is None else str(self.thinking)
        return {"thinking": thinking, "drops_thoughts": int(self.drops)}


def thinking_of_field(text: str) -> Thinking:
    """Return `thinking` from a field of a session's file."""
    return {"": None, "True": True, "False": False}.get(text, text)


def check_thoughts(thoughts: str | None, tags: ThoughtTags | None) -> bool:
    """Return whether a session drops thoughts.

    Raises:
        InvalidArgument: `thoughts` is none of its values.
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

    tags: ThoughtTags
    question: str
    state: ConversationState
    """Before the turn."""
    closing: list[int]
    """Of the reply before, if that was still open."""
    end: int
    """Tokens of the conversation, the question and the generation prompt included."""
    source: _core.Session | None
    """The session before the turn, if that runs in a fork."""


def least_capacity(spec: DecoderSpec, sinks: int, window: int) -> int:
    """Return how many tokens a sequence may have before a layer evicts the first one."""
    groups = cache_groups(spec.own_windows, spec.layers, sinks, window)
    return min(group.capacity for group in groups)


def without_thoughts(
    asked: Asked, reply: Sequence[int], turns: TurnFormat, *, is_whole: bool
) -> list[int] | None:
    """Return the ids of a turn without its thoughts; None if it has none.

    Args:
        asked: The turn.
        reply: The ids of its reply, or the last of them.
        turns: The parts of conversations.
        is_whole: Whether the reply is complete.

    Raises:
        InvalidArgument: It cannot be said where the text begins, or the template refuses the turn.
    """
    split = asked.tags.split(reply, is_whole=is_whole)
    if split.tokens == 0 and not asked.tags.form.is_prompted:
        return None
    if not is_whole and split.kind == "thought":
        raise InvalidArgument(IS_LONG)
    said = {"role": "user", "content": asked.question}
    reply_said = {"role": "assistant", "content": split.text}
    return asked.closing + turns.exchange(said, reply_said, after=asked.state.after)
