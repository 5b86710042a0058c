"""Which turn a request continues: the one it names, or the longest that its messages begin with.

Only equal hashes match. Nothing is found by similarity, or by a key alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sinkstream.conversations.canonical import beginning, canonical_messages, follow
from sinkstream.conversations.conversation_writer import ConversationWriter
from sinkstream.conversations.errors import SessionMoved
from sinkstream.conversations.fence import Fence
from sinkstream.conversations.node import Node, new_id, settled_id
from sinkstream.conversations.residency import Residency, Resident
from sinkstream.conversations.running_turns import RunningTurns
from sinkstream.conversations.store import Store
from sinkstream.conversations.turns import NotFound, TurnRequest
from sinkstream.errors import InvalidArgument, SessionBusy
from sinkstream.request.template_variables import Thinking, named_variables
from sinkstream.sessions.pinned import Pinning
from sinkstream.text.messages import Message

_TRIES = 4  # to own the conversation that a request continues


@dataclass(frozen=True, slots=True)
class Match:
    """Where a request continues."""

    base: Node | None
    """The turn that it follows; None for a new conversation."""
    unread: list[Message]
    """Its messages after that turn."""
    before: bytes
    """The hash at that turn's end."""
    resident: Resident | None = None
    """The session of a turn that is not in the store, acquired."""
    sinks: int | None = None
    """S of a new conversation; None for the model's."""


class Lookup:
    """Finds turns in a store, and turns that are only in memory. Any thread may call it."""

    def __init__(self, store: Store, residency: Residency, identity: str, pinning: Pinning) -> None:
        """Look in `store` and `residency` for turns of the model that `identity` describes.

        `pinning` chooses S of conversations: only those with the same S are equal.
        """
        self._store = store
        self._residency = residency
        self._identity = identity
        self._pinning = pinning

    def by_messages(
        self,
        request: TurnRequest,
        messages: list[Message],
        loses_thoughts: Callable[[list[Message]], bool],
    ) -> Match:
        """Return the turn that matches the longest prefix of the messages.

        Args:
            request: The request.
            messages: Its canonical messages.
            loses_thoughts: Whether earlier replies lose their thoughts before some messages. A turn
                that is not stored and has thoughts is not continued then.
        """
        tools = "" if request.tools is None else request.tools.key
        sinks = self._pinning.sinks_for(request.sinks, messages, request.thinking, request.tools)
        pinned = "" if sinks is None else f", sinks {sinks}"
        identity = self._identity + tools + named_variables(request.thinking) + pinned
        start = beginning(self._store.secret, request.tenant, request.cache_salt, identity)
        # The last message is always read, and so is the one before a reply that is continued.
        most = len(messages) - (2 if request.continue_final else 1)
        hashes = list(follow(start, messages[: max(0, most)]))
        counts = {
            after: count
            for count, after in enumerate(hashes, 1)
            if messages[count - 1]["role"] == "assistant"
        }
        longest_first = list(counts)[::-1]
        stored = self._store.find(request.tenant, longest_first)
        if not request.store:
            least = counts[stored[0].hash] if stored else 0
            known = self._unstored_hashes(request.tenant)  # few, while a history may have thousands
            for after in longest_first:
                if counts[after] < least:
                    break
                if after not in known:
                    continue
                unread = messages[counts[after] :]
                is_it = _is_unstored(request.tenant, after, is_settled=loses_thoughts(unread))
                resident = self._residency.acquire(is_it)
                if resident is not None:
                    return Match(resident.node, unread, after, resident)
        if not stored:
            return Match(None, messages, start, sinks=sinks)
        base = self._preferred(stored, request.session_key)
        return Match(base, messages[counts[base.hash] :], base.hash)

    def _unstored_hashes(self, tenant: str) -> set[bytes]:
        """Return the hashes of a tenant's turns that are only in memory."""
        found = set()

        def note(one: Resident) -> bool:
            node = _unstored_turn(one)
            if node is not None and node.tenant == tenant:
                found.add(node.hash)
            return False

        self._residency.find(note)
        return found

    def by_name(self, name: str, request: TurnRequest, messages: list[Message]) -> Match:
        """Return the turn with an id.

        Raises:
            NotFound: The tenant has no such turn.
            InvalidArgument: It was not stored, but the next turn is to be.
            SessionBusy: It was not stored, and another request is continuing it.
        """
        node = self._store.node(name)
        if node is not None and node.tenant == request.tenant:
            return Match(node, messages, node.hash)
        is_it = _has_name(request.tenant, name)
        if not self._residency.find(is_it):
            raise NotFound(
                f"stream: `previous` must name a turn, but there is no turn {name[:80]!r}."
            )
        if request.store:
            raise InvalidArgument(
                f"stream: `store` must be false to continue {name}, which was not stored.",
                param="store",
            )
        resident = self._residency.acquire(is_it)
        if resident is None or resident.node is None:
            raise SessionBusy(
                f"stream: `previous` must name a turn that is idle, but {name} is being continued. "
                "A turn that was not stored cannot be continued by two requests at the same time."
            )
        return Match(resident.node, messages, resident.node.hash, resident)

    def _preferred(self, nodes: list[Node], session_key: str | None) -> Node:
        """Return, among equal turns, the client's own or else one in memory."""
        own = [node for node in nodes if session_key and node.session_key == session_key] or nodes
        return next((node for node in own if self._residency.find(_is_idle_at(node))), own[0])


@dataclass(frozen=True, slots=True)
class TurnStart:
    """Where a turn begins."""

    match: Match
    conversation: str
    writer: ConversationWriter | None
    """Of the conversation; None if the turn is not stored."""


class TurnStarts:
    """Finds where requests continue, and keeps other processes away from there."""

    def __init__(
        self,
        lookup: Lookup,
        fence: Fence,
        running: RunningTurns,
        loses_thoughts: Callable[[Thinking, list[Message]], bool],
    ) -> None:
        """Use what finds turns, gives out writers, and knows the turns that are running."""
        self._lookup = lookup
        self._store = fence.store
        self._fence = fence
        self._running = running
        self._loses_thoughts = loses_thoughts

    def of(self, request: TurnRequest) -> TurnStart:
        """Return where a request continues.

        Its conversation counts as running from here on, so that no other process is given it.
        """
        for _ in range(_TRIES):
            match = self._recovered_match(request)
            conversation = new_id("sess") if match.base is None else match.base.conversation
            if not request.store:
                return TurnStart(match, conversation, None)
            writer = self._started_writer(conversation, is_new=match.base is None)
            if writer is not None:
                return TurnStart(match, conversation, writer)
            # Taking it closes turns that others had not finished: the match may be longer then.
            self._fence.own(conversation)
        raise SessionMoved(conversation)

    def _started_writer(self, conversation: str, *, is_new: bool) -> ConversationWriter | None:
        """Return what writes a conversation; one of its turns then counts as running."""
        writer = None
        self._running.start(conversation)
        try:
            fence = self._fence
            writer = fence.begin(conversation) if is_new else fence.confirmed(conversation)
        finally:
            if writer is None:
                self._running.started(conversation)
        return writer

    def _recovered_match(self, request: TurnRequest) -> Match:
        """Return the turn that a request continues, even if its process died meanwhile."""
        try:
            return self.match(request)
        except NotFound:
            if not self.recover(request.tenant, request.previous or ""):
                raise
        return self.match(request)

    def recover(self, tenant: str, name: str) -> bool:
        """Close a running turn if no living process runs it; return whether it was.

        Raises:
            SessionBusy: Another process is running it.
        """
        session = self._store.unfinished_session(tenant, name)
        if session is None or self._fence.held(session) is not None:
            return False
        if self._fence.adopt(session) is None and self._store.is_running(session):
            raise SessionBusy(
                f"stream: `previous` must name a turn that has ended, but {name} is running."
            )
        return True

    def match(self, request: TurnRequest) -> Match:
        """Return the turn that a request continues."""
        messages = canonical_messages(request.messages, continue_final=request.continue_final)
        if request.previous:
            return self._lookup.by_name(request.previous, request, messages)
        return self._lookup.by_messages(
            request, messages, partial(self._loses_thoughts, request.thinking)
        )


def _unstored_turn(one: Resident) -> Node | None:
    """Return the turn at whose end a session is, if it is only there."""
    node = one.node
    if node is None or one.is_stored or one.cancelled_ids or node.is_form:
        return None
    return node


def _is_unstored(tenant: str, after: bytes, *, is_settled: bool) -> Callable[[Resident], bool]:
    def matches(one: Resident) -> bool:
        node = _unstored_turn(one)
        if node is None or (is_settled and not node.is_settled):
            return False
        return (node.tenant, node.hash) == (tenant, after)

    return matches


def _has_name(tenant: str, name: str) -> Callable[[Resident], bool]:
    def matches(one: Resident) -> bool:
        node = _unstored_turn(one)
        return node is not None and (node.tenant, node.id) == (tenant, name)

    return matches


def _is_idle_at(node: Node) -> Callable[[Resident], bool]:
    names = (node.id, settled_id(node.id))

    def matches(one: Resident) -> bool:
        return one.node is not None and one.node.id in names and one.state != "running"

    return matches
