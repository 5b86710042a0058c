"""Conversations without an end: finds the turn that a request continues, and begins the next.

Memory holds a fixed number of sessions; the store holds every turn. Which of them a request names,
by its messages or by an id, is decided by hashes alone. Knows no HTTP.
"""

from __future__ import annotations

import logging
import threading
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import blake2b
from pathlib import Path

from sinkstream.errors import SessionBusy
from sinkstream.model import Model
from sinkstream.request.options import StreamOptions
from sinkstream.server.conversations.canonical import (
    canonical_messages,
    encode,
    hash_after,
    without_reasoning,
)
from sinkstream.server.conversations.lookup import Lookup, Match
from sinkstream.server.conversations.node import NewNode, new_id
from sinkstream.server.conversations.reading import BEGINNING, Place, read_messages
from sinkstream.server.conversations.residency import Resident
from sinkstream.server.conversations.running_turn import Begun, RunningTurn
from sinkstream.server.conversations.settings import Settings
from sinkstream.server.conversations.sqlite_store import SqliteStore
from sinkstream.server.conversations.states import Found, States, found_at
from sinkstream.server.conversations.store_error import StoreError
from sinkstream.server.conversations.transcript import StoredTurn
from sinkstream.server.conversations.upkeep import Upkeep
from sinkstream.server.plain_turns import PlainTurn, begin_text
from sinkstream.server.turns import NotFound, TurnFacts, TurnRequest, TurnText
from sinkstream.streams.stream import Stream

logger = logging.getLogger("sinkstream")


class Conversations:
    """Implements `Turns` over a store. Any thread may call it; only `begin` and `end` block."""

    def __init__(self, model: Model, store: Path, settings: Settings | None = None) -> None:
        """Open the store.

        Args:
            model: Its sequences are used; others may take part in them, see `room`.
            store: A folder, created if missing.
            settings: The limits.

        Raises:
            StoreError: The store cannot be used; the message says why.
            InvalidArgument: The chat template cannot be split into turns.
        """
        settings = settings or Settings()
        self._model = model
        self._turns = model._turn_format()
        if not self._turns.is_exact:
            logger.warning("%s", self._turns.difference)
        capacity = model.capacity
        identity = identity_of(model)
        self._store = SqliteStore.open(store, identity, full_sync=settings.full_sync)
        self._states = States(
            model._host(),
            self._turns,
            self._store,
            settings.seats or capacity.max_sequences,
            replay_tokens=_or(settings.replay_tokens, capacity.tokens // 8),
            max_replay=settings.max_replay,
        )
        self._lookup = Lookup(self._store, self._states.residency, identity)
        self._running: set[RunningTurn] = set()
        self._lock = threading.Lock()  # of the set, and of deletions
        self._is_closed = False
        self._upkeep = Upkeep(
            self._states,
            self._store,
            settings,
            snapshot_tokens=_or(settings.snapshot_tokens, capacity.tokens),
            delete=self._delete_idle,
        )

    # ---- turns -----------------------------------------------------------------------------------

    def begin(self, request: TurnRequest) -> RunningTurn:
        """Begin a turn after the one that the request names; see `Turns.begin`.

        Raises:
            StateLost: A replay would be longer than the settings allow.
            StoreError: The store cannot be read or written.
            Exception: Any error that `Turns.begin` names.
        """
        if self._is_closed:
            raise StoreError("store: the store is closed.")
        self._model._check_options(request.options, None)
        match = self._match(request)
        try:
            following = self._following(request, match)
        except BaseException:
            if match.resident is not None:
                self._states.residency.release(match.resident)
            raise
        found = self._found(request, match, following)
        try:
            tags = self._model._thought_tags(request.thinking)
            given = match.unread[-1]["content"] if request.continue_final else ""
            stream = found.resident.session._stream_ids(
                found.ids.tolist(), None if tags is None else tags.reader(given), **request.options
            )
        except BaseException:  # such as an option out of range: the session is as it was
            self._states.residency.unclaim(found.resident)
            raise
        try:
            return self._follow(request, match, found, following, stream)
        except BaseException:
            stream.close()
            self._states.residency.discard(found.resident)
            raise

    def _match(self, request: TurnRequest) -> Match:
        messages = canonical_messages(request.messages, continue_final=request.continue_final)
        if request.previous:
            return self._lookup.by_name(request.previous, request, messages)
        return self._lookup.by_messages(request, messages)

    def _following(self, request: TurnRequest, match: Match) -> array[int]:
        """Return the ids of the messages that are not read yet."""
        base = match.base
        place = BEGINNING if base is None else Place("assistant", True, base.last_id)
        ids = read_messages(
            self._model._turn_format(request.thinking),
            match.unread,
            place,
            continue_final=request.continue_final,
            has_thoughts=self._model._thought_tags(request.thinking) is not None,
        )
        return array("i", ids)

    def prompt_tokens(self, request: TurnRequest) -> int:
        """Return the tokens of a conversation before its reply; see `Turns.prompt_tokens`.

        Raises:
            Exception: Any error of a message or a name that `begin` raises.
        """
        match = self._match(request)
        try:
            following = self._following(request, match)
        finally:
            if match.resident is not None:
                self._states.residency.release(match.resident)
        return len(following) + (0 if match.base is None else match.base.tokens)

    def text_of(self, tenant: str, name: str) -> TurnText:
        """Return a stored turn as text.

        Raises:
            NotFound: The tenant has no such turn.
        """
        found = self._store.text_of(tenant, name)
        if found is None:
            raise NotFound(
                f"stream: `previous` must name a turn, but there is no turn {name[:80]!r}."
            )
        return found

    def note(self, name: str, note: str) -> None:
        """Keep a note with a stored turn."""
        self._store.note(name, note).result()

    def _follow(
        self,
        request: TurnRequest,
        match: Match,
        found: Found,
        following: array[int],
        stream: Stream,
    ) -> RunningTurn:
        base, resident = match.base, found.resident
        read = match.unread[:-1] if request.continue_final else match.unread
        tokens = len(following) + (0 if base is None else base.tokens)
        new = NewNode(
            id=request.node or new_id("resp"),
            parent=None if base is None else base.id,
            conversation=new_id("sess") if base is None else base.conversation,
            tenant=request.tenant,
            session_key=request.session_key,
            read_ids=following,
            messages=encode([without_reasoning(message) for message in match.unread]),
            before=hash_after(match.before, read),
            given=match.unread[-1]["content"] if request.continue_final else "",
            tokens=tokens,
            record=request.record,
        )
        begun = Begun(
            new=new,
            resident=resident,
            base=base,
            ids=found.ids,
            starts_at=base if found.replayed == 0 and not resident.ahead else None,
            tokens_before=found.tokens_before,
        )
        facts = TurnFacts(
            state=found.state,
            node=new.id,
            session=new.conversation,
            prompt_tokens=tokens,
            cached_tokens=tokens - len(found.ids),
            replayed_tokens=found.replayed,
        )
        store = self._store if request.store else None
        turn = RunningTurn(begun, stream, facts, store, self._states.residency, self._ended)
        with self._lock:
            self._running.add(turn)
        try:
            if store is not None:
                store.begin(new)
        except BaseException:
            self._ended(turn)
            stream._record = None
            raise
        return turn

    def _found(self, request: TurnRequest, match: Match, following: array[int]) -> Found:
        if match.resident is not None:
            resident = match.resident
            if request.forks:
                resident = self._states.fork_of(resident) or resident
            return found_at(resident, "resident", following)
        if match.base is None:
            return self._states.new(following)
        moves = request.store and not request.has_siblings
        return self._states.after(match.base, following, moves=moves, evicts=request.has_siblings)

    def _ended(self, turn: RunningTurn) -> None:
        with self._lock:
            self._running.discard(turn)

    # ---- memory, deletion, the end ---------------------------------------------------------------

    @contextmanager
    def room(self) -> Iterator[None]:
        """Keep a sequence free for a request outside the tree, such as `Model.stream`.

        Raises:
            CapacityError: Turns are running in all sequences.
        """
        self._states.residency.take_seat()
        try:
            yield
        finally:
            self._states.residency.free_seat()

    def begin_text(self, prompt: str | Sequence[int], options: StreamOptions) -> PlainTurn:
        """Start a completion of plain text or of token ids, outside the tree.

        Raises:
            CapacityError: Turns are running in all sequences.
            Exception: Any error that `Model.stream` raises.
        """
        with ExitStack() as stack:
            stack.enter_context(self.room())
            turn = begin_text(self._model, prompt, options)
            turn.on_end = stack.pop_all().close
            return turn

    def conversations(self, tenant: str) -> list[tuple[str, float]]:
        """Return the ids of a tenant's conversations and when each was used, the latest first."""
        return self._store.conversations(tenant)

    def titles(self, tenant: str) -> dict[str, str]:
        """Return how a tenant's conversations begin."""
        return self._store.titles(tenant)

    def transcript(self, tenant: str, name: str) -> list[StoredTurn]:
        """Return the turns of a conversation, the oldest first, or the one turn that is named.

        Raises:
            NotFound: The tenant has no such conversation or turn.
        """
        turns = self._store.transcript(tenant, name)
        if not turns:
            raise NotFound(f"sessions: there is no turn or conversation {name[:80]!r}.")
        return turns

    def delete(self, tenant: str, name: str) -> None:
        """Delete a conversation, or a turn with all that follow it; on disk, too.

        Raises:
            NotFound: The tenant has no such conversation or turn.
            SessionBusy: A turn of the conversation is running.
        """
        node = self._store.node(name)
        if node is not None and node.tenant == tenant:
            conversation = node.conversation
        elif any(name == own for own, _ in self._store.conversations(tenant)):
            conversation = name
        else:
            raise NotFound(f"delete: `name` must name a turn or a conversation, but {name[:80]!r} "
                           "names neither.")  # fmt: skip
        if not self._close_sessions_of(conversation):
            raise SessionBusy(f"delete: {name} must be idle, but a turn is running.")
        if node is not None and conversation != name:
            self._store.delete_tree(name).result()
        else:
            self._store.delete_conversation(conversation).result()

    def _delete_idle(self, conversation: str) -> bool:
        if not self._close_sessions_of(conversation):
            return False
        self._store.delete_conversation(conversation).result()
        return True

    def _close_sessions_of(self, conversation: str) -> bool:
        """Close a conversation's idle sessions; return whether no turn of it is running."""

        def belongs(one: Resident) -> bool:
            return one.node is not None and one.node.conversation == conversation

        with self._lock:
            if any(turn.conversation == conversation for turn in self._running):
                return False
        residency = self._states.residency
        while (resident := residency.claim(belongs)) is not None:
            residency.discard(resident)
        return not residency.find(belongs)

    def close(self) -> None:
        """Cancel and commit the running turns, park all sessions, and close the store."""
        if self._is_closed:
            return
        self._is_closed = True
        self._upkeep.close()
        with self._lock:
            running = list(self._running)
        for turn in running:
            try:
                turn.end()
            except Exception as error:  # the others are to be committed all the same
                logger.warning("store: a turn could not be committed: %s", error)
        while self._states.residency.park_idle():
            pass
        self._store.close()


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def identity_of(model: Model) -> str:
    """Describe what stored token ids and hashes depend on."""
    capacity = model.capacity
    template = blake2b((model._text.chat_template or "").encode(), digest_size=8).hexdigest()
    return (
        f"{model._native.fingerprint()}, sinks {capacity.sinks}, window {capacity.window}, "
        f"template {template}"
    )
