"""Brings a turn's state into a session in the cheapest way; all ways give the same bits."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from sinkstream.errors import CapacityError, CheckpointError, SinkstreamError
from sinkstream.server.conversations.claim import Claim
from sinkstream.server.conversations.node import Node
from sinkstream.server.conversations.residency import Residency, Resident, undo
from sinkstream.server.conversations.snapshots import load_snapshot, save_snapshot
from sinkstream.server.conversations.store import Store
from sinkstream.server.turns import NotFound, TurnState
from sinkstream.sessions.conversation_state import ConversationState
from sinkstream.sessions.session import Host, Session
from sinkstream.streams.worker import wanted
from sinkstream.text.turns.turn_format import TurnFormat

logger = logging.getLogger("sinkstream")

_NOTHING = array("i", [-1])
"""What follows a turn that is not continued: no session has read any part of it."""


class StateLost(SinkstreamError, RuntimeError):
    """A conversation's state would take more tokens to rebuild than are allowed."""

    code = "state_lost"


@dataclass(frozen=True, slots=True)
class Found:
    """A session for a turn."""

    resident: Resident
    """Claimed by the caller."""
    state: TurnState
    ids: array[int]
    """What the session still has to read: stored ids, then new ones."""
    replayed: int
    """How many of them are stored ids."""
    tokens_before: int
    """The session's tokens before it reads them."""


def found_at(resident: Resident, state: TurnState, ids: array[int], replayed: int = 0) -> Found:
    """Return a session that may already have read a part of `ids`."""
    tokens = resident.session.stats.tokens
    return Found(resident, state, ids[len(resident.ahead) :], replayed, tokens)


class States:
    """Finds, loads, replays and saves states. Any thread may call it."""

    def __init__(
        self,
        host: Host,
        turns: TurnFormat,
        store: Store,
        seats: int,
        *,
        replay_tokens: int,
        max_replay: int | None,
        claim_of: Callable[[str], Claim | None],
    ) -> None:
        """Use a model's sequences for conversations.

        Args:
            host: The model.
            turns: The parts of its conversations.
            store: Where turns and snapshots are.
            seats: The sequences to use.
            replay_tokens: A parked session that can be replayed with at most this many tokens gets
                no snapshot.
            max_replay: The most tokens to replay; None for no limit.
            claim_of: Returns this replica's claim to a conversation; without a claim, none of its
                snapshots is written or deleted.
        """
        self._host = host
        self._turns = turns
        self._store = store
        self._replay_tokens = replay_tokens
        self._max_replay = max_replay
        self._claim_of = claim_of
        self.residency = Residency(seats, self._park)

    # ---- bringing --------------------------------------------------------------------------------

    def new(self, ids: array[int], salt: str) -> Found:
        """Open a session that will read a conversation from its beginning.

        Args:
            ids: The conversation.
            salt: The request's `engine_salt`.

        Raises:
            CapacityError: There is no seat for it.
        """
        resident = self._seated(lambda: self._opened(ids, salt))
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
                resident = self._beside(resident, evicts=evicts)
            return found_at(resident, "resident", following)
        resident = self.residency.child_of(node.id)
        if resident is not None:
            if undo(resident, node):
                resident.is_stored = True
                resident.saved_tokens = self._store.saved_tokens(node.id)
                return found_at(resident, "undone", following)
            self.residency.release(resident)
        return self._rebuilt(node, following, salt)

    def _rebuilt(self, node: Node, following: array[int], salt: str) -> Found:
        """Load the turn, or the nearest turn before it, and replay the tokens in between."""
        parts: list[array[int]] = []
        gone = NotFound(f"stream: `previous` must name a turn, but {node.id} was deleted.")
        at: Node | None = node
        while at is not None:
            replayed = node.tokens - at.tokens
            if self._max_replay is not None and replayed > self._max_replay:
                raise StateLost(
                    f"stream: `previous` must name a turn at most {self._max_replay} tokens after "
                    f"the nearest state that is kept, but turn {node.id} is at least {replayed} "
                    "tokens after it."
                )
            resident = self._forked(at) if at is not node else None
            if resident is None:
                resident = self._loaded(at, salt)
            if resident is not None:
                if sum(map(len, parts)) != replayed:
                    self.residency.unclaim(resident)
                    raise gone
                ids = _joined([*reversed(parts), following])
                return found_at(resident, "replayed" if replayed else "loaded", ids, replayed)
            parts.append(self._store.ids_of(at.id))
            parent = at.parent
            at = None if parent is None else self._store.node(parent)
            if parent is not None and at is None:
                raise gone
        if sum(map(len, parts)) != node.tokens:  # deleted between the search and the reading
            raise gone
        ids = _joined([*reversed(parts), following])
        return replace(self.new(ids, salt), state="replayed", replayed=node.tokens)

    def _forked(self, node: Node) -> Resident | None:
        source = self.residency.claim(
            lambda one: one.node is not None and one.node.id == node.id and not one.ahead,
            keeps=True,
        )
        return None if source is None else self._beside(source)

    def _beside(self, source: Resident, *, evicts: bool = False) -> Resident:
        """Return a fork of a kept session if a seat is free; otherwise itself, made restorable."""
        fork = None
        if not source.ahead and self.residency.try_seat(evicts=evicts):
            fork = self._fork_into_seat(source)
        if fork is None:
            self._park(source)
            return self.residency.use(source)
        return fork

    def fork_of(self, source: Resident) -> Resident | None:
        """Return a fork of a claimed session, which is then idle; None if there is no room.

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
                    lambda: Resident(load_snapshot(self._host, self._turns, node, path, salt), node)
                )
        except CheckpointError as error:
            logger.warning("store: a snapshot is not used, and its turn is replayed: %s", error)
            self.drop_snapshot(node.id)
            return None
        session.saved_tokens = node.tokens
        return session

    def _opened(self, ids: array[int], salt: str) -> Resident:
        # The last token is always read: its logits begin the reply.
        native = self._host.native.open_session(None, ids[:-1].tolist(), salt)
        session = Session(native, self._host, self._turns, ConversationState())
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

    def save_to(self, node: Node, path: Path) -> None:
        """Bring the end of a stored turn into a session, and write that session to a file.

        Raises:
            OSError: The file cannot be written.
            Exception: Any error that `after` raises.
        """
        # The salt of its requests is not stored: a session that is opened shares with none.
        found = self.after(node, _NOTHING, f"of {node.id}", moves=False)
        session = found.resident.session
        try:
            ids = found.ids[: -len(_NOTHING)]
            if ids:
                session._read(ids.tolist(), ConversationState("assistant", reply_is_open=True))
            session._save(path, wanted)
        except BaseException:
            self.residency.discard(found.resident)
            raise
        found.resident.node, found.resident.undo = node, None
        self.residency.release(found.resident)

    # ---- keeping ---------------------------------------------------------------------------------

    def unsaved(self, resident: Resident) -> int:
        """Return how many tokens to replay if a session were lost; 0 if it is not kept."""
        node = resident.node
        if node is None or not resident.is_stored or resident.ahead:
            return 0
        return node.tokens - resident.saved_tokens

    def needs_saving(self, resident: Resident) -> bool:
        """Return whether parking a session writes its snapshot."""
        return self.unsaved(resident) > self._replay_tokens

    def save(self, resident: Resident) -> None:
        """Write a claimed or kept session's snapshot, if this replica owns the conversation.

        Raises:
            OSError: The file cannot be written.
            StoreError: It cannot be recorded.
            SessionMoved: Another replica has taken the conversation.
        """
        node = resident.node
        assert node is not None  # `unsaved` is above 0
        claim = self._claim_of(node.conversation)
        if claim is None:
            return
        file = self._store.new_file(claim, node.id)
        with self._store.files.writing(file) as path:
            save_snapshot(resident.session, node, path)
            size = path.stat().st_size
        self._store.add_snapshot(claim, node, file, size)
        self._count_saved(node.conversation)  # it may have displaced that of a branch

    def drop_snapshot(self, node_id: str) -> None:
        """Delete a turn's snapshot, if this replica owns the conversation.

        A session that relied on it will be saved again.
        """
        node = self._store.node(node_id)
        claim = None if node is None else self._claim_of(node.conversation)
        if node is None or claim is None:
            return
        self._store.drop_snapshot(claim, node_id)
        self._count_saved(node.conversation)

    def _count_saved(self, conversation: str) -> None:
        for one in self.residency.all():
            if one.node is not None and one.node.conversation == conversation:
                one.saved_tokens = self._store.saved_tokens(one.node.id)

    def _park(self, resident: Resident) -> None:
        if not self.needs_saving(resident):
            return
        try:
            self.save(resident)
        except (OSError, SinkstreamError) as error:  # its ids are stored: it will be replayed
            logger.warning("store: a parked session will be replayed: %s", error)


def _joined(parts: list[array[int]]) -> array[int]:
    ids: array[int] = array("i")
    for part in parts:
        ids.extend(part)
    return ids
