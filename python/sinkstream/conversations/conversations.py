"""Endless conversations: finds the turn that a request continues, and begins the next.

Memory holds a fixed number of sessions; the store holds every turn. Hashes alone decide which of
them a request refers to, by its messages or by an id. Knows nothing about HTTP.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sinkstream.conversations.conversation_writer import ConversationWriter
from sinkstream.conversations.errors import SessionMoved, closed_error
from sinkstream.conversations.lookup import Lookup, TurnStarts
from sinkstream.conversations.maintenance import Maintenance
from sinkstream.conversations.open_store import Identity, Opener, Settings, open_folder
from sinkstream.conversations.plain_turns import PlainTurn, begin_text
from sinkstream.conversations.restore import StateRestorer
from sinkstream.conversations.running_turns import RunningTurn, RunningTurns
from sinkstream.conversations.session_at import SessionAt
from sinkstream.conversations.snapshots import Snapshots, SnapshotThread
from sinkstream.conversations.thoughts_dropped import ThoughtsDropped
from sinkstream.conversations.transcript import ListedConversation, StoredTurn, TurnOutline
from sinkstream.conversations.turn_starter import TurnStarter
from sinkstream.conversations.turns import (
    NotFound,
    TextRequest,
    TurnRequest,
    TurnText,
    Waiting,
)
from sinkstream.errors import SessionBusy
from sinkstream.model import Model, host_of
from sinkstream.sessions.pinned import Pinning

logger = logging.getLogger("sinkstream")


class Conversations:
    """Implements `Turns` over a store. Any thread may call it; only `begin` and `end` block."""

    def __init__(
        self, model: Model, store: Path | Opener, settings: Settings | None = None
    ) -> None:
        """Open the store.

        Args:
            model: The model whose sequences are used; others may use some of them, see `room`.
            store: A folder, created if missing; or what opens another kind of store.
            settings: The limits.

        Raises:
            StoreError: The store cannot be used; the message says why.
            InvalidArgument: The chat template cannot be split into turns.
        """
        settings = settings or Settings()
        self._host = host_of(model)
        turns = self._host.formats.turns(None)
        if not turns.is_exact:
            logger.warning("%s", turns.difference)
        capacity = model.capacity
        identity = str(Identity.of(self._host))
        if isinstance(store, Path):
            self.fence = open_folder(store, identity, settings)
        else:
            self.fence = store(identity)
        self._store = self.fence.store
        self.promises = self.fence.promises
        seats = settings.seats or capacity.max_sequences
        self._dropped = ThoughtsDropped(self._host, self._store, settings.thoughts)
        snapshots = Snapshots(
            self._store,
            self.fence.held,
            replay_tokens=_or(settings.replay_tokens, capacity.tokens // 8),
            snapshot_tokens=_or(settings.snapshot_tokens, capacity.tokens),
        )
        self._restorer = StateRestorer(
            self._host,
            self._store,
            seats,
            max_replay=settings.max_replay,
            snapshots=snapshots,
            thoughts=self._dropped.of_sessions,
        )
        self._session_at = SessionAt(self._restorer, self._store, self._dropped)
        self._running = RunningTurns(self._restorer.residency)
        self._pinning = Pinning(self._host, settings.sinks)
        lookup = Lookup(self._store, self._restorer.residency, identity, self._pinning)
        self._starts = TurnStarts(lookup, self.fence, self._running, self._dropped.loses_thoughts)
        self._starter = TurnStarter(
            self._host,
            self._starts,
            self._dropped,
            self._restorer,
            self._session_at,
            self._running,
            capacity.tokens,
        )
        self._is_closed = False
        self.fence.watch(self._running)
        self._maintenance = Maintenance(
            self._restorer,
            self._store,
            self.fence,
            settings,
            delete=self._delete_idle,
        )
        self._snapshot_thread = SnapshotThread(
            snapshots, self._restorer.residency, _or(settings.saved_early, max(1, seats // 4))
        )

    @property
    def trouble(self) -> str | None:
        """Return why nothing can be kept, or None; see `Turns.trouble`."""
        return self._store.lost

    # ---- turns -----------------------------------------------------------------------------------

    def begin(self, request: TurnRequest) -> RunningTurn:
        """Begin a turn after the one that the request names; see `Turns.begin`.

        Raises:
            StateLost: A replay would be longer than the settings allow.
            StoreError: The store cannot be read or written.
            SessionMoved: Another process keeps taking the conversation.
            Exception: Any error that `Turns.begin` names.
        """
        if self._is_closed:
            raise closed_error()
        return self._starter.begin(request)

    def prompt_tokens(self, request: TurnRequest) -> int:
        """Return the tokens of a conversation before its reply; see `Turns.prompt_tokens`."""
        return self._starter.prompt_tokens(request)

    def text_of(self, tenant: str, name: str, *, may_run: bool = False) -> TurnText:
        """Return a stored turn as text; see `Turns.text_of`."""
        if may_run:
            self._store.write_queued()  # its beginning may be in the queue
        found = self._store.text_of(tenant, name, may_run=may_run)
        if found is None and self._starts.recover(tenant, name):
            found = self._store.text_of(tenant, name)
        if found is None:
            raise NotFound(
                f"stream: `previous` must name a turn, but there is no turn {name[:80]!r}."
            )
        return found

    def note(self, name: str, note: str) -> None:
        """Keep a note with a stored turn.

        Raises:
            SessionMoved: Another process has the conversation.
        """
        session = self._store.session_of(name)
        writer = None if session is None else self.fence.held(session)
        if session is not None and writer is None:
            raise SessionMoved(session)
        if writer is not None:
            writer.note(name, note).result()

    # ---- memory, deletion, the end ---------------------------------------------------------------

    def wait_in(self, waiting: Waiting) -> None:
        """Make threads wait for the model in a context; see `Turns.wait_in`."""
        self._restorer.residency.waiting = self.fence.waiting = waiting

    @contextmanager
    def room(self) -> Iterator[None]:
        """Keep a sequence free for a request outside the tree, such as `Model.stream`.

        Raises:
            CapacityError: Turns are running in all sequences.
        """
        self._restorer.residency.take_seat()
        try:
            yield
        finally:
            self._restorer.residency.free_seat()

    def begin_text(self, asked: TextRequest) -> PlainTurn:
        """Start a completion of plain text or of token ids, outside the tree.

        Raises:
            CapacityError: Turns are running in all sequences.
            Exception: Any error that `Turns.begin_text` names.
        """
        with ExitStack() as stack:
            stack.enter_context(self.room())
            turn = begin_text(self._host, asked, self._pinning)
            turn.on_end = stack.pop_all().close
            return turn

    def conversations(
        self, tenant: str, limit: int, after: str | None = None
    ) -> list[ListedConversation]:
        """Return a tenant's conversations, latest first; see `Turns.conversations`."""
        if after is not None and not self._store.has_conversation(tenant, after):
            raise _no_session(after)
        return self._store.listed(tenant, limit, after)

    def rename(self, tenant: str, name: str, title: str) -> None:
        """Give a conversation another title; see `Turns.rename`.

        Raises:
            SessionMoved: Another process has taken the conversation.
        """
        writer = None
        if self._store.has_conversation(tenant, name):
            writer = self._idle_writer(name, f"rename: {name}")
        if writer is None:
            raise NotFound(f"sessions: there is no conversation {name[:80]!r}.")
        writer.rename(title).result()

    def outline(self, tenant: str, name: str) -> list[TurnOutline]:
        """Return a conversation's turns without their text; see `Turns.outline`."""
        turns = self._store.outline(tenant, name)
        if not turns:
            raise _no_session(name)
        return turns

    def transcript(self, tenant: str, name: str) -> list[StoredTurn]:
        """Return the turns of a conversation, oldest first; see `Turns.transcript`."""
        turns = self._store.transcript(tenant, name)
        if not turns:
            raise _no_session(name)
        return turns

    def save(self, tenant: str, name: str, path: Path) -> None:
        """Write a session file of a turn's end, or of a conversation's last turn.

        Raises:
            NotFound: The tenant has no such conversation or turn.
            CapacityError: Turns are running in all sequences.
            StateLost: A replay would be longer than the settings allow.
            OSError: The file cannot be written.
        """
        node = self._store.last_turn(tenant, name)
        if node is None:
            raise _no_session(name)
        self._session_at.save_to(self._dropped.last_end(node), path)

    def delete(self, tenant: str, name: str) -> None:
        """Delete a conversation, or a turn with all turns that follow it, also on disk.

        Raises:
            NotFound: The tenant has no such conversation or turn.
            SessionBusy: A turn of the conversation is running.
            SessionMoved: Another process has taken the conversation.
        """
        node = self._store.node(name)
        if node is not None and node.tenant == tenant:
            conversation = node.conversation
        elif self._store.has_conversation(tenant, name):
            conversation = name
        else:
            raise NotFound(f"delete: `name` must name a turn or a conversation, but {name[:80]!r} "
                           "names neither.")  # fmt: skip
        writer = self._idle_writer(conversation, f"delete: {name}")
        if writer is None:
            return  # its only turn had not been finished
        if not self._running.close_sessions(conversation):
            raise SessionBusy(f"delete: {name} must be idle, but a turn is running.")
        if node is not None and conversation != name:
            writer.delete_tree(name).result()
        else:
            writer.delete_all().result()

    def _idle_writer(self, conversation: str, call: str) -> ConversationWriter | None:
        """Return the writer of a conversation of which no other process is running a turn.

        None if its only turn had not been finished.
        """
        if self.fence.is_elsewhere(conversation) and self._store.is_running(conversation):
            raise SessionBusy(f"{call} must be idle, but a turn is running.")
        return self.fence.own(conversation)

    def _delete_idle(self, writer: ConversationWriter, tick: int) -> bool:
        if not self._running.close_sessions(writer.conversation):
            return False
        return writer.delete_all(tick).result()

    def close(self) -> None:
        """Cancel and commit the running turns, park all sessions, and close the store.

        Other processes then do not have to ask for the conversations.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._maintenance.close()
        self._snapshot_thread.close()
        for turn in self._running.all():
            try:
                turn.end()
            except Exception as error:  # the others are to be committed all the same
                logger.warning("store: a turn could not be committed: %s", error)
        self._restorer.residency.park_all()
        self.fence.close()
        self._store.close()


def _no_session(name: str) -> NotFound:
    return NotFound(f"sessions: there is no turn or conversation {name[:80]!r}.")


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
