"""Brings a turn's state into a session in the cheapest way; all ways give the same bits."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sinkstream.conversations.errors import StateLost
from sinkstream.conversations.node import Form, Node
from sinkstream.conversations.residency import Residency, Resident, undo
from sinkstream.conversations.snapshots import Snapshots, load_snapshot
from sinkstream.conversations.store import Store
from sinkstream.conversations.turns import TurnState, deleted
from sinkstream.errors import CapacityError, CheckpointError
from sinkstream.host import Host
from sinkstream.sessions.thoughts import Thoughts
from sinkstream.sessions.token_session import ConversationState, TokenSession

logger = logging.getLogger("sinkstream")

NOTHING = array("i", [-1])
"""What follows a turn that is not continued: no session has read any part of it."""


@dataclass(frozen=True, slots=True)
class Found:
    """A session for a turn."""

    resident: Resident
    """Acquired by the caller."""
    state: TurnState
    ids: array[int]
    """What the session still has to read: stored ids, then new ones."""
    replayed: int
    """How many of them are stored ids."""
    tokens_before: int
    """The session's tokens before it reads them."""
    read: int = 0
    """How many tokens it has read already for this turn."""
    read_s: float = 0.0
    """How long that took."""
    is_fork: bool = False
    """Whether the state before the turn stays in another session."""


def found_at(resident: Resident, state: TurnState, ids: array[int], replayed: int = 0) -> Found:
    """Return a session that may already have read a part of `ids`."""
    tokens = resident.session.stats.tokens
    return Found(resident, state, ids[len(resident.cancelled_ids) :], replayed, tokens)


class StateRestorer:
    """Finds, loads and replays states. Any thread may call it."""

    def __init__(
        self,
        host: Host,
        store: Store,
        seats: int,
        *,
        max_replay: int | None,
        snapshots: Snapshots,
        thoughts: Thoughts,
    ) -> None:
        """Use a model's sequences for conversations.

        Args:
            host: The model.
            store: Where turns and snapshots are.
            seats: The sequences to use.
            max_replay: The most tokens to replay; None for no limit.
            snapshots: Writes their snapshots.
            thoughts: What sessions that are saved for a client do with thoughts.
        """
        self._host = host
        self._store = store
        self._max_replay = max_replay
        self._thoughts = thoughts
        self.snapshots = snapshots
        self.residency = Residency(seats, snapshots.secure, snapshots.is_due)
        snapshots.residents = self.residency.all

    def new(self, ids: array[int], salt: str, sinks: int | None) -> Found:
        """Open a session that will read a conversation from its beginning.

        Args:
            ids: The conversation.
            salt: The request's `engine_salt`.
            sinks: S of the conversation; None for the model's.

        Raises:
            CapacityError: There is no seat for it.
        """
        resident = self._seated(lambda: self._opened(ids, salt, sinks))
        shared = resident.session.stats.tokens
        return Found(resident, "new", ids[shared:], 0, shared)

    def after(
        self, node: Node, following: array[int], salt: str, *, moves: bool, evicts: bool = False
    ) -> Found:
        """Bring the end of a stored turn into a session, which will read `following` next.

        Args:
            node: The turn.
            following: What comes after it.
            salt: The salt of a session that is opened: see `TurnRequest.engine_salt`.
            moves: Whether the conversation continues there. If not, a session that is at the turn
                stays there as long as another sequence is free.
            evicts: Whether the sequence of an idle conversation counts as free.

        Raises:
            CapacityError: There is no seat for it.
            StateLost: It would take a longer replay than is allowed.
            NotFound: The conversation has been deleted meanwhile.
        """
        resident = self.residency.at(node.id, following, keeps=not moves)
        if resident is not None:
            if not moves:
                resident = self.fork_or_use(resident, evicts=evicts)
            return found_at(resident, "resident", following)
        return self.undone(node, following) or self.rebuilt(node, following, salt)

    def undone(self, node: Node, following: array[int]) -> Found | None:
        """Undo a turn that followed a state directly, if one is idle and nothing was evicted."""
        resident = self.residency.child_of(node.id)
        if resident is None:
            return None
        try:
            if not undo(resident, node):
                self.residency.release(resident)
                return None
            resident.is_stored = not node.is_draft
            resident.saved_tokens = self._store.saved_tokens(node.id)
        except BaseException:
            self.residency.discard(resident)
            raise
        return found_at(resident, "undone", following)

    def rebuilt(
        self, node: Node, following: array[int], salt: str, forms: Sequence[Form] = ()
    ) -> Found:
        """Load the turn, or the nearest state before it, and replay the tokens in between.

        Args:
            node: A turn, or a settled form.
            following: What comes after it.
            salt: Of a session that is opened.
            forms: Settled forms that the store does not have yet.
        """
        new = {form.node.id: form for form in forms}
        fresh = sum(len(form.ids) for form in forms)
        ids = following  # after `at`
        # A stored conversation goes on to a form in its session; a draft is only for one request.
        moves = node.is_form and not node.is_draft
        at: Node | None = node
        while at is not None:
            replayed = node.tokens - at.tokens
            if self._max_replay is not None and replayed - fresh > self._max_replay:
                raise StateLost(
                    f"stream: `previous` must name a turn at most {self._max_replay} tokens after "
                    f"the nearest saved state, but turn {node.id} is at least {replayed} "
                    "tokens after it."
                )
            resident = None if at is node else self._in_memory(at, ids, moves=moves)
            state: TurnState = "loaded" if resident is None else "resident"
            if resident is None and at.id not in new:
                resident = self._loaded(at, salt)
            if resident is not None:
                if len(ids) - len(following) != replayed:
                    self.residency.give_back(resident)
                    raise deleted(node.id)
                return found_at(resident, "replayed" if replayed > fresh else state, ids, replayed)
            ids = (new[at.id].ids if at.id in new else self._store.ids_of(at.id)) + ids
            base = at.base
            at = None
            if base is not None:
                at = new[base].node if base in new else self._store.state(base)
                if at is None:
                    raise deleted(node.id)
        if len(ids) - len(following) != node.tokens:  # deleted between the search and the reading
            raise deleted(node.id)
        sinks = self._store.sinks_of(node.conversation)
        return replace(self.new(ids, salt, sinks), state="replayed", replayed=node.tokens)

    def _in_memory(self, node: Node, following: array[int], *, moves: bool) -> Resident | None:
        """Acquire a session at a state, or a fork of it; None if there is none.

        Args:
            node: The state.
            following: What comes after it.
            moves: Whether the conversation goes on to a later settled form, in that session.
        """
        if moves:
            resident = self.residency.at(node.id, following)
            if resident is None and (found := self.undone(node, following)) is not None:
                resident = found.resident
            return resident
        source = self.residency.acquire(
            lambda one: one.node is not None and one.node.id == node.id and not one.cancelled_ids,
            keeps=True,
        )
        return None if source is None else self.fork_or_use(source)

    def fork_or_use(self, source: Resident, *, evicts: bool = False) -> Resident:
        """Return a fork of a kept session if a seat is free; otherwise itself, made restorable."""
        fork = None
        if not source.cancelled_ids and self.residency.try_seat(evicts=evicts):
            fork = self._fork_into_seat(source)
        if fork is None:
            self.snapshots.secure(source)
            return self.residency.use(source)
        return fork

    def fork_of(self, source: Resident) -> Resident | None:
        """Return a fork of an acquired session, which is then idle; None if there is no room.

        Other idle sessions give up their seats.
        """
        try:
            self.residency.take_seat()
        except CapacityError:
            return None
        return self._fork_into_seat(source)

    def _fork_into_seat(self, source: Resident) -> Resident | None:
        try:
            fork = source.session.fork()
        except CapacityError:  # a request outside the tree has the memory
            self.residency.free_seat()
            return None
        except BaseException:
            self.residency.free_seat()
            self.residency.release(source)
            raise
        resident = Resident(
            fork, source.node, is_stored=source.is_stored, saved_tokens=source.saved_tokens
        )
        self.residency.seat(resident)
        self.residency.release(source)
        return resident

    def _loaded(self, node: Node, salt: str) -> Resident | None:
        file = self._store.snapshot_of(node.id)
        if file is None:
            return None
        try:
            with self._store.files.reading(file) as path:
                session = self._seated(
                    lambda: Resident(
                        load_snapshot(self._host, node, path, salt, self._thoughts),
                        node,
                    )
                )
        except CheckpointError as error:
            logger.warning("store: a snapshot is not used, and its turn is replayed: %s", error)
            self.snapshots.drop_snapshot(node.id)
            return None
        session.saved_tokens = node.tokens
        return session

    def _opened(self, ids: array[int], salt: str, sinks: int | None) -> Resident:
        # The last token is always read: its logits begin the reply.
        native = self._host.native.open_session(sinks, ids[:-1].tolist(), salt)
        session = TokenSession(
            native, self._host, ConversationState(), fields=self._thoughts.fields
        )
        return Resident(session, None)

    def _seated(self, make: Callable[[], Resident]) -> Resident:
        """Create a session in a seat; requests outside the tree may hold memory, too."""
        self.residency.take_seat()
        try:
            while True:
                try:
                    return self.residency.seat(make())
                except CapacityError:
                    if not self.residency.park_idle():
                        raise
        except BaseException:
            self.residency.free_seat()
            raise
