"""Which end of a turn a message follows: the one that was generated, or the one without thoughts.

See Note: [Settled forms] in `node.py`.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sinkstream.conversations.canonical import canonical_messages, has_reasoning
from sinkstream.conversations.conversation_writer import ConversationWriter
from sinkstream.conversations.node import (
    Form,
    Node,
    draft_of,
    settled_id,
    stored_form,
    turn_of,
)
from sinkstream.conversations.read_messages import BEGINNING, Drops, StartPoint, read_earlier
from sinkstream.conversations.store import Store
from sinkstream.conversations.turns import calls_of, deleted
from sinkstream.errors import InvalidArgument
from sinkstream.host import Host
from sinkstream.request.template_variables import Thinking
from sinkstream.request.tools import Tools
from sinkstream.sessions.thoughts import Thoughts, check_thoughts
from sinkstream.structured.lru_cache import LruCache
from sinkstream.text.find_thoughts import shows_thoughts_of_calls
from sinkstream.text.messages import Message
from sinkstream.text.template_turns import TemplateTurns
from sinkstream.text.templates.sandbox import written_at
from sinkstream.text.turn_format import TurnFormat

logger = logging.getLogger("sinkstream")

_MOST = 16  # values of `thinking`, which clients choose


@dataclass(frozen=True, slots=True)
class End:
    """The state that messages follow."""

    node: Node | None
    """A turn as it was generated, or a settled form; None for the beginning of a conversation."""
    forms: Sequence[Form] = ()
    """Settled forms up to it that nothing has read yet, or only as drafts, the first one first."""
    draft: str = ""
    """Its id before it was stored, if it has been stored for this request."""

    @property
    def tokens(self) -> int:
        """Return how many tokens come before it."""
        return 0 if self.node is None else self.node.tokens

    @property
    def start(self) -> StartPoint:
        """Return where that is for the messages that follow."""
        return start_after(self.node)


def start_after(node: Node | None) -> StartPoint:
    """Return where messages after a turn, or after a settled form, are."""
    if node is None:
        return BEGINNING
    if node.is_form or node.is_closed:
        return StartPoint("assistant")
    return StartPoint("assistant", True, node.last_id)


class ThoughtsDropped:
    """Of the conversations in a store. Any thread may call it."""

    def __init__(self, host: Host, store: Store, thoughts: str | None) -> None:
        """Treat thoughts as `thoughts` of `Model.session` says.

        Raises:
            InvalidArgument: It is none of its values.
        """
        self._host = host
        self._store = store
        self._thoughts = thoughts
        self._rules: LruCache[Thinking, Drops] = LruCache(_MOST)
        self._has_warned = False
        check_thoughts(thoughts, None)

    @property
    def of_sessions(self) -> Thoughts:
        """Return what sessions that are saved for a client are to do with thoughts."""
        tags = self._host.formats.tags(None)
        return Thoughts(tags, None, check_thoughts(self._thoughts, tags))

    def drops(self, thinking: Thinking) -> Drops:
        """Return when a conversation loses the thoughts of earlier replies."""
        return self._rules.get(thinking, lambda: self._find_drops(thinking))

    def _find_drops(self, thinking: Thinking) -> Drops:
        turns = self._host.formats.turns(thinking)
        has_dropped = check_thoughts(self._thoughts, self._host.formats.tags(thinking))
        if not has_dropped or not isinstance(turns, TemplateTurns):
            return "never"
        return "before_user" if shows_thoughts_of_calls(turns.chat) else "always"

    def loses_thoughts(self, thinking: Thinking, messages: Sequence[Message]) -> bool:
        """Return whether earlier replies lose their thoughts before some messages."""
        drops = self.drops(thinking)
        if drops == "before_user":
            return any(message["role"] == "user" for message in messages)
        return drops == "always"

    def may_be_settled(
        self, thinking: Thinking, end: Node | None, messages: Sequence[Message], given: str
    ) -> bool:
        """Return whether a turn is its own settled form, if its reply has no thought.

        Args:
            thinking: Of its request.
            end: What it follows.
            messages: What it reads.
            given: The beginning of its reply that was given.
        """
        if end is not None and not end.is_settled:
            return False
        tags = self._host.formats.tags(thinking)
        if tags is None:
            return True
        return not (tags.form.is_prompted or given or any(map(has_reasoning, messages)))

    def end_of(
        self, turn: Node, thinking: Thinking, tools: Tools | None, messages: Sequence[Message]
    ) -> End:
        """Return which end of a stored turn some messages follow.

        Raises:
            NotFound: The conversation was deleted meanwhile.
        """
        if turn.is_settled or not self.loses_thoughts(thinking, messages):
            return End(turn)
        turns = self._host.formats.turns(thinking, tools)
        try:
            return self._settled(turn, turns, self.drops(thinking))
        except InvalidArgument as error:
            self._warn_once(error)
            return End(turn)

    def refreshed(self, end: End) -> End:
        """Return an end that follows the forms which have been stored since it was made."""
        for count in range(len(end.forms), 0, -1):
            at = self._store.state(settled_id(end.forms[count - 1].turn_id))
            if at is None:
                continue
            drafts: list[Form] = []
            for form in end.forms[count:]:
                drafts.append(draft_of(form.node, at, form.ids))
                at = drafts[-1].node
            return End(at, drafts)
        return end

    def stored(self, end: End, writer: ConversationWriter) -> End:
        """Store the drafts of an end; forms that other requests have stored first stay.

        Raises:
            NotFound: The conversation was deleted meanwhile.
            SessionMoved: Another process has taken it.
            StoreError: The store cannot be written.
        """
        node = end.node
        assert node is not None  # it is a form
        for _ in range(len(end.forms) + 1):
            end = self.refreshed(end)
            if not end.forms:
                return end
            forms = [*map(stored_form, end.forms)]
            if writer.add_forms(forms).result():
                return End(forms[-1].node, forms, end.forms[-1].node.id)
        raise deleted(turn_of(node.id))

    def last_end(self, turn: Node) -> End:
        """Return the end of a turn that a file for a client holds: before a user message.

        The tools of its requests are not known here. If the conversation has any, and its settled
        form is not known yet, it is the end with the thoughts.
        """
        end = self.end_of(turn, None, None, [{"role": "user", "content": ""}])
        if not end.forms or end.forms[0].node.parent is not None:
            return end
        first = self._store.node(end.forms[0].turn_id)
        if first is None:
            raise deleted(turn.id)
        system, said = None, self._messages_of(first)
        if said[0]["role"] == "system":
            system, said = said[0]["content"], said[1:]
        turns = self._host.formats.turns(None)
        after = None if system is None else "system"
        # Templates write tools before the first message of the user, if they write any.
        with written_at(self._begun_at(first)):
            beginning = turns.opening(system) + turns.read(said[0], after=after)
        has_tools = self._store.ids_of(first.id).tolist()[: len(beginning)] != beginning
        return End(turn) if has_tools else end

    def _settled(self, turn: Node, turns: TurnFormat, drops: Drops) -> End:
        unknown: list[Node] = []
        at: Node | None = turn
        while at is not None and not at.is_settled:
            known = self._store.form(at)
            if known is not None:
                at = known.node
                break
            unknown.append(at)
            parent = at.parent
            at = None if parent is None else self._store.node(parent)
            if parent is not None and at is None:
                raise deleted(turn.id)
        forms: list[Form] = []
        calls = self.calls_of(unknown[-1].tenant, unknown[-1].parent) if unknown else []
        for one in reversed(unknown):
            said = self._messages_of(one)
            with written_at(self._begun_at(one)):
                ids = read_earlier(
                    turns, said, start_after(at), has_thoughts=True, drops=drops, calls=calls
                )
            calls = said[-1].get("tool_calls", [])
            forms.append(draft_of(one, at, array("i", ids)))
            at = forms[-1].node
        return End(at, forms)

    def calls_of(self, tenant: str, turn: str | None) -> list[dict[str, Any]]:
        """Return the calls of a stored reply, or of that whose settled form it is."""
        text = None if turn is None else self._store.text_of(tenant, turn_of(turn))
        return [] if text is None else calls_of(text)

    def _begun_at(self, turn: Node) -> float | None:
        """Return when a stored turn was read, in seconds."""
        text = self._store.text_of(turn.tenant, turn.id)
        return None if text is None else text.created_at

    def _messages_of(self, turn: Node) -> list[Message]:
        """Return the messages of a turn and its reply, as a client sends them back."""
        text = self._store.text_of(turn.tenant, turn.id)
        if text is None:
            raise deleted(turn.id)
        reply: dict[str, object] = {"role": "assistant", "content": text.given + text.text}
        if calls := calls_of(text):
            reply["tool_calls"] = calls
        read = text.messages[:-1] if text.given else text.messages
        return [*read, *canonical_messages([reply])]

    def _warn_once(self, error: InvalidArgument) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("store: the thoughts of a reply stay in its conversation: %s", error)
