"""Endless conversations: finds the turn that a request continues, and begins the next.

Memory holds a fixed number of sessions; the store holds every turn. Hashes alone decide which of
them a request refers to, by its messages or by an id. Knows nothing about HTTP.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from sinkstream.conversations.canonical import (
    encode_all,
    hash_after,
    without_reasoning,
)
from sinkstream.conversations.conversation_writer import ConversationWriter
from sinkstream.conversations.earlier_turns import Given, split_off
from sinkstream.conversations.errors import SessionMoved, closed_error
from sinkstream.conversations.lookup import Lookup, Match, TurnStart, TurnStarts
from sinkstream.conversations.maintenance import Maintenance
from sinkstream.conversations.node import NewNode, new_id
from sinkstream.conversations.opening import Opener, Settings, identity_of, open_folder
from sinkstream.conversations.overflow import Prompt, check_fits, warning_of
from sinkstream.conversations.plain_turns import PlainTurn, begin_text
from sinkstream.conversations.reading import read_messages
from sinkstream.conversations.restore import Found, StateRestorer, found_at
from sinkstream.conversations.running_turns import Begun, RunningTurn, RunningTurns
from sinkstream.conversations.session_at import Deadline, SessionAt, deadline_of
from sinkstream.conversations.snapshots import Snapshots, SnapshotThread
from sinkstream.conversations.thoughts_dropped import End, ThoughtsDropped
from sinkstream.conversations.transcript import StoredTurn, TurnOutline
from sinkstream.conversations.turns import (
    NotFound,
    TextRequest,
    TurnFacts,
    TurnRequest,
    TurnText,
    Waiting,
)
from sinkstream.errors import ContextExceeded, SessionBusy
from sinkstream.host import ReplyOptions
from sinkstream.model import Model, host_of
from sinkstream.observe.activities import ACTIVITIES
from sinkstream.request.stream_request import StreamRequest, called_at
from sinkstream.sessions.pinned import Pinning
from sinkstream.streams.served_stream import ServedStream
from sinkstream.text.messages import Message

logger = logging.getLogger("sinkstream")

_TITLE = 80  # characters


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
        identity = identity_of(self._host)
        if isinstance(store, Path):
            self.fence = open_folder(store, identity, settings)
        else:
            self.fence = store(identity)
        self._store = self.fence.store
        self._capacity = capacity.tokens
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
        asked = ReplyOptions(
            request.options,
            thinking=request.thinking,
            tools=request.tools,
            given=request.given,
            called_at=called_at(),
        )
        complete = self._host.complete(asked)
        deadline = deadline_of(complete.options["timeout_s"], asked.called_at)
        with ACTIVITIES.during("store"):
            start = self._starts.of(request)
        try:
            return self._begun(request, complete, start, deadline)
        finally:
            if request.store:
                self._running.started(start.conversation)

    def _begun(
        self,
        request: TurnRequest,
        complete: StreamRequest,
        start: TurnStart,
        deadline: Deadline | None,
    ) -> RunningTurn:
        """Bring a turn's state into a session, and begin the next turn there."""
        match = start.match
        try:
            end = self._end(request, match)
            with ACTIVITIES.during("encoding"):
                self._host.check_messages(match.unread)
                following = self._following(request, match, end)
            if request.refuses_overflow:
                check_fits(Prompt(end.tokens, len(following)), self._capacity, "messages")
        except BaseException:
            if match.resident is not None:
                self._restorer.residency.release(match.resident)
            raise
        found = self._found(request, start, end, following, deadline)
        if end.node is not None and end.node.is_form:
            end = End(found.resident.node)  # another request may have stored another form of it
        try:
            session, ids = found.resident.session, found.ids.tolist()
            stream = session.reply_to(ServedStream, ids, complete)
        except BaseException:  # such as an option out of range: the session is as it was
            self._restorer.residency.give_back(found.resident)
            raise
        try:
            return self._follow(request, start, end, found, following, stream)
        except BaseException:
            stream.close()
            self._restorer.residency.discard(found.resident)
            raise

    def _end(self, request: TurnRequest, match: Match) -> End:
        """Return the state that the messages which have not been read yet follow."""
        if match.base is None or match.resident is not None:
            return End(match.base)
        return self._dropped.end_of(match.base, request.thinking, request.tools, match.unread)

    def _following(self, request: TurnRequest, match: Match, end: End) -> array[int]:
        """Return the ids of the messages that have not been read yet."""
        ids = read_messages(
            self._host.formats.turns(request.thinking, request.tools),
            match.unread,
            end.start,
            continue_final=request.continue_final,
            has_thoughts=self._host.formats.tags(request.thinking) is not None,
            drops=self._dropped.drops(request.thinking),
        )
        return array("i", ids)

    def prompt_tokens(self, request: TurnRequest) -> int:
        """Return the tokens of a conversation before its reply; see `Turns.prompt_tokens`.

        Raises:
            Exception: Any error about a message or a name that `begin` raises.
        """
        try:
            match = self._starts.match(request)
        except ContextExceeded:  # too much is pinned: no turn has begun with it
            match = self._starts.match(replace(request, sinks=0))
        try:
            end = self._end(request, match)
            following = self._following(request, match, end)
        finally:
            if match.resident is not None:
                self._restorer.residency.release(match.resident)
        return len(following) + end.tokens

    def text_of(self, tenant: str, name: str, *, may_run: bool = False) -> TurnText:
        """Return a stored turn as text; see `Turns.text_of`.

        Raises:
            NotFound: The tenant has no such turn.
        """
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

    def _follow(
        self,
        request: TurnRequest,
        start: TurnStart,
        end: End,
        found: Found,
        following: array[int],
        stream: ServedStream,
    ) -> RunningTurn:
        match = start.match
        base, resident = match.base, found.resident
        read = match.unread[:-1] if request.continue_final else match.unread
        prompt = Prompt(end.tokens, len(following))
        native = resident.session.native
        dropped = prompt.dropped(native.sinks, native.window)
        given = request.given or ""
        thinking = request.thinking
        new = NewNode(
            id=request.node or new_id("resp"),
            parent=None if base is None else base.id,
            conversation=start.conversation,
            tenant=request.tenant,
            session_key=request.session_key,
            read_ids=following,
            messages=encode_all(map(without_reasoning, match.unread if given else read)),
            before=hash_after(match.before, read),
            given=given,
            tokens=prompt.tokens,
            record=request.record,
            sinks=match.sinks,
            title=_title(match.unread) if base is None else "",
            is_after_settled=end.node is not None and end.node.is_form,
        )
        earlier: list[Given] = []
        if start.writer is not None and not request.record:  # whose writer counts messages
            earlier, new = split_off(
                self._host.formats.turns(thinking, request.tools),
                match.unread,
                end.start,
                new,
                match.before,
                is_settled=end.node is None or end.node.is_settled,
                has_thoughts=self._host.formats.tags(thinking) is not None,
                drops=self._dropped.drops(thinking),
            )
        is_exact = len(found.ids) == len(following) and not resident.cancelled_ids
        begun = Begun(
            new=new,
            writer=start.writer,
            resident=resident,
            ids=found.ids,
            starts_at=end.node if is_exact and not found.is_fork else None,
            tokens_before=found.tokens_before,
            may_be_settled=self._dropped.may_be_settled(thinking, end.node, match.unread, given),
            drops=self._dropped.drops(thinking),
        )
        facts = TurnFacts(
            state=found.state,
            node=new.id,
            session=new.conversation,
            prompt_tokens=prompt.tokens,
            cached_tokens=prompt.tokens - len(found.ids) - found.read,
            replayed_tokens=found.replayed,
            read_tokens=found.read,
            read_s=found.read_s,
            pinned_tokens=min(native.sinks, prompt.tokens),
            dropped_tokens=dropped,
            warning=warning_of(prompt, dropped, self._capacity),
        )
        turn = RunningTurn(begun, stream, facts, self._restorer.residency, self._running.discard)
        self._running.add(turn)
        try:
            if start.writer is not None:
                for turn_before in earlier:
                    turn_before.write(start.writer)
                start.writer.begin(new)
        except BaseException:
            self._running.discard(turn)
            stream.record = None
            raise
        return turn

    def _found(
        self,
        request: TurnRequest,
        start: TurnStart,
        end: End,
        following: array[int],
        deadline: Deadline | None,
    ) -> Found:
        match = start.match
        if match.resident is not None:
            resident = match.resident
            if request.forks:
                resident = self._restorer.fork_of(resident) or resident
            return found_at(resident, "resident", following)
        if end.node is None:
            return self._restorer.new(following, request.engine_salt, match.sinks)
        if end.node.is_form:
            return self._session_at.settled(
                end,
                following,
                request.engine_salt,
                writer=start.writer,
                deadline=deadline,
            )
        moves = request.store and not request.has_siblings
        return self._restorer.after(
            end.node,
            following,
            request.engine_salt,
            moves=moves,
            evicts=request.has_siblings,
        )

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

    def conversations(self, tenant: str) -> list[tuple[str, float]]:
        """Return a tenant's conversations, latest first; see `Turns.conversations`."""
        return self._store.listed(tenant)

    def titles(self, tenant: str) -> dict[str, str]:
        """Return how a tenant's conversations begin."""
        return self._store.titles(tenant)

    def outline(self, tenant: str, name: str) -> list[TurnOutline]:
        """Return a conversation's turns without their text, oldest first; see `Turns.outline`.

        Raises:
            NotFound: The tenant has no such conversation or turn.
        """
        turns = self._store.outline(tenant, name)
        if not turns:
            raise _no_session(name)
        return turns

    def transcript(self, tenant: str, name: str) -> list[StoredTurn]:
        """Return the turns of a conversation, oldest first, or a single turn.

        Raises:
            NotFound: The tenant has no such conversation or turn.
        """
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
        if self.fence.is_elsewhere(conversation) and self._store.is_running(conversation):
            raise SessionBusy(f"delete: {name} must be idle, but a turn is running.")
        writer = self.fence.own(conversation)
        if writer is None:
            return  # its only turn had not been finished
        if not self._running.close_sessions(conversation):
            raise SessionBusy(f"delete: {name} must be idle, but a turn is running.")
        if node is not None and conversation != name:
            writer.delete_tree(name).result()
        else:
            writer.delete_all().result()

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


def _title(messages: Sequence[Message]) -> str:
    """Return how a conversation begins, for lists of conversations."""
    first = next((one["content"] for one in messages if one["role"] == "user"), "")
    return str(first or "")[:_TITLE]


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
