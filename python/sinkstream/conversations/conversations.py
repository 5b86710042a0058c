"""Endless conversations: finds the turn that a request continues, and begins the next.

Memory holds a fixed number of sessions; the store holds every turn. Hashes alone decide which of
them a request refers to, by its messages or by an id. Knows nothing about HTTP.
"""

from __future__ import annotations

import logging
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path

from sinkstream.conversations.canonical import (
    canonical_messages,
    encode,
    hash_after,
    without_reasoning,
)
from sinkstream.conversations.claim import Claim, Replica, SessionMoved
from sinkstream.conversations.ends import Ends
from sinkstream.conversations.heartbeat import Heartbeat
from sinkstream.conversations.interrupted import Deadline, deadline_of
from sinkstream.conversations.lookup import Lookup, Match
from sinkstream.conversations.node import NewNode, new_id
from sinkstream.conversations.opening import open_store
from sinkstream.conversations.ownership import AskRelease, Ownership
from sinkstream.conversations.plain_turns import PlainTurn, begin_text
from sinkstream.conversations.reading import read_messages
from sinkstream.conversations.residency import Resident
from sinkstream.conversations.running_turn import Begun, RunningTurn
from sinkstream.conversations.saver import Saver
from sinkstream.conversations.saving import Saving
from sinkstream.conversations.settings import Settings
from sinkstream.conversations.settling import End, Settling
from sinkstream.conversations.states import Found, States, found_at
from sinkstream.conversations.store_error import closed_error
from sinkstream.conversations.transcript import StoredTurn
from sinkstream.conversations.turns import NotFound, TurnFacts, TurnRequest, TurnText, Waiting
from sinkstream.conversations.upkeep import Upkeep
from sinkstream.errors import SessionBusy, SinkstreamError
from sinkstream.host import Host, ReplyOptions
from sinkstream.model import Model, host_of
from sinkstream.request.options import StreamOptions
from sinkstream.request.stream_request import StreamRequest
from sinkstream.streams.served_stream import ServedStream
from sinkstream.text.messages import Message

logger = logging.getLogger("sinkstream")

_TITLE = 80  # characters
_TRIES = 4  # to own the conversation that a request continues


class Conversations:
    """Implements `Turns` over a store. Any thread may call it; only `begin` and `end` block."""

    def __init__(self, model: Model, store: Path | str, settings: Settings | None = None) -> None:
        """Open the store.

        Args:
            model: The model whose sequences are used; others may use some of them, see `room`.
            store: A folder, created if missing; or `postgresql://…`.
            settings: The limits.

        Raises:
            StoreError: The store cannot be used; the message says why.
            InvalidArgument: The chat template cannot be split into turns.
        """
        settings = settings or Settings()
        self._host = host_of(model)
        turns = self._host.turns()
        if not turns.is_exact:
            logger.warning("%s", turns.difference)
        capacity = model.capacity
        identity = identity_of(self._host)
        self._store = open_store(store, identity, settings)
        self._store.on_lost = self._lost
        self._ownership = Ownership(self._store, self._is_running)
        seats = settings.seats or capacity.max_sequences
        self._settling = Settling(self._host, self._store, settings.thoughts)
        saving = Saving(
            self._store,
            self._ownership.held,
            replay_tokens=_or(settings.replay_tokens, capacity.tokens // 8),
            snapshot_tokens=_or(settings.snapshot_tokens, capacity.tokens),
        )
        self._states = States(
            self._host,
            self._store,
            seats,
            max_replay=settings.max_replay,
            saving=saving,
            thoughts=self._settling.of_sessions,
        )
        self._ends = Ends(self._states, self._store, self._settling)
        self._lookup = Lookup(self._store, self._states.residency, identity)
        self._running: set[RunningTurn] = set()
        self._starting: Counter[str] = Counter()  # turns of a conversation that are not running yet
        self._changed = threading.Condition()  # of both
        self._is_closed = False
        self._upkeep = Upkeep(
            self._states,
            self._store,
            self._ownership,
            settings,
            delete=self._delete_idle,
        )
        self._saver = Saver(self._states, _or(settings.saved_early, max(1, seats // 4)))
        self._heartbeat = Heartbeat(self._store, settings.address)

    # ---- turns -----------------------------------------------------------------------------------

    def begin(self, request: TurnRequest) -> RunningTurn:
        """Begin a turn after the one that the request names; see `Turns.begin`.

        Raises:
            StateLost: A replay would be longer than the settings allow.
            StoreError: The store cannot be read or written.
            SessionMoved: Another replica keeps taking the conversation.
            Exception: Any error that `Turns.begin` names.
        """
        if self._is_closed:
            raise closed_error()
        asked = ReplyOptions(request.options, thinking=request.thinking, tools=request.tools)
        complete = self._host.complete(asked)
        deadline = deadline_of(complete.options["timeout_s"])
        match, claim = self._claimed(request)
        try:
            return self._begun(request, complete, match, claim, deadline)
        finally:
            if request.store:
                self._started(claim.session)

    def _begun(
        self,
        request: TurnRequest,
        complete: StreamRequest,
        match: Match,
        claim: Claim,
        deadline: Deadline | None,
    ) -> RunningTurn:
        """Bring a turn's state into a session, and begin the next turn there."""
        try:
            end = self._end(request, match)
            following = self._following(request, match, end)
        except BaseException:
            if match.resident is not None:
                self._states.residency.release(match.resident)
            raise
        found = self._found(request, match, claim, end, following, deadline)
        if end.node is not None and end.node.is_form:
            end = End(found.resident.node)  # another request may have stored another form of it
        if deadline is not None:
            complete = replace(complete, called_at=deadline.until - deadline.timeout_s)
        self._store.reach("loaded")
        try:
            given = match.unread[-1]["content"] if request.continue_final else ""
            session, ids = found.resident.session, found.ids.tolist()
            stream = session.reply_to(ServedStream, ids, complete, given)
        except BaseException:  # such as an option out of range: the session is as it was
            self._states.residency.unclaim(found.resident)
            raise
        try:
            return self._follow(request, match, end, claim, found, following, stream)
        except BaseException:
            stream.close()
            self._states.residency.discard(found.resident)
            raise

    def _claimed(self, request: TurnRequest) -> tuple[Match, Claim]:
        """Return the turn that a request continues, and the claim to write the next one.

        Its conversation counts as running from here on, so that the claim is not given up.
        """
        for _ in range(_TRIES):
            match = self._recovered_match(request)
            session = new_id("sess") if match.base is None else match.base.conversation
            if not request.store:  # nothing is written
                return match, Claim(session, 0)
            claim = self._started_claim(session, is_new=match.base is None)
            if claim is not None:
                return match, claim
            # Taking it closes turns that others had not finished: the match may be longer then.
            self._ownership.own(session)
        raise SessionMoved(session)

    def _started_claim(self, session: str, *, is_new: bool) -> Claim | None:
        """Return the claim to a conversation; one of its turns then counts as running."""
        claim = None
        with self._changed:
            self._starting[session] += 1
        try:
            own = self._ownership
            claim = own.begin(session) if is_new else own.confirmed(session)
        finally:
            if claim is None:
                self._started(session)
        return claim

    def _started(self, session: str) -> None:
        """Count a turn as running only if it really is."""
        with self._changed:
            self._starting[session] -= 1
            self._starting += Counter()  # without those that are 0
            self._changed.notify_all()

    def _recovered_match(self, request: TurnRequest) -> Match:
        """Return the turn that a request continues, even if its owner died while it was running."""
        try:
            return self._match(request)
        except NotFound:
            if not self._recover(request.tenant, request.previous or ""):
                raise
        return self._match(request)

    def _recover(self, tenant: str, name: str) -> bool:
        """Close a running turn if no living replica runs it; return whether it was.

        Raises:
            SessionBusy: Another replica is running it.
        """
        session = self._store.unfinished_session(tenant, name)
        if session is None or self._ownership.held(session) is not None:
            return False
        if self._ownership.adopt(session) is None and self._store.is_running(session):
            raise SessionBusy(
                f"stream: `previous` must name a turn that has ended, but {name} is running."
            )
        return True

    def _match(self, request: TurnRequest) -> Match:
        messages = canonical_messages(request.messages, continue_final=request.continue_final)
        if request.previous:
            return self._lookup.by_name(request.previous, request, messages)
        return self._lookup.by_messages(
            request, messages, partial(self._settling.loses_thoughts, request.thinking)
        )

    def _end(self, request: TurnRequest, match: Match) -> End:
        """Return the state that the messages which have not been read yet follow."""
        if match.base is None or match.resident is not None:
            return End(match.base)
        return self._settling.end_of(match.base, request.thinking, request.tools, match.unread)

    def _following(self, request: TurnRequest, match: Match, end: End) -> array[int]:
        """Return the ids of the messages that have not been read yet."""
        ids = read_messages(
            self._host.turns(request.thinking, request.tools),
            match.unread,
            end.start,
            continue_final=request.continue_final,
            has_thoughts=self._host.tags(request.thinking) is not None,
            drops=self._settling.drops(request.thinking),
        )
        return array("i", ids)

    def prompt_tokens(self, request: TurnRequest) -> int:
        """Return the tokens of a conversation before its reply; see `Turns.prompt_tokens`.

        Raises:
            Exception: Any error about a message or a name that `begin` raises.
        """
        match = self._match(request)
        try:
            end = self._end(request, match)
            following = self._following(request, match, end)
        finally:
            if match.resident is not None:
                self._states.residency.release(match.resident)
        return len(following) + end.tokens

    def text_of(self, tenant: str, name: str, *, may_run: bool = False) -> TurnText:
        """Return a stored turn as text; see `Turns.text_of`.

        Raises:
            NotFound: The tenant has no such turn.
        """
        if may_run:
            self._store.write_queued()  # its beginning may be in the queue
        found = self._store.text_of(tenant, name, may_run=may_run)
        if found is None and self._recover(tenant, name):
            found = self._store.text_of(tenant, name)
        if found is None:
            raise NotFound(
                f"stream: `previous` must name a turn, but there is no turn {name[:80]!r}."
            )
        return found

    def note(self, name: str, note: str) -> None:
        """Keep a note with a stored turn.

        Raises:
            SessionMoved: Another replica has the conversation.
        """
        session = self._store.session_of(name)
        claim = None if session is None else self._ownership.held(session)
        if session is not None and claim is None:
            raise SessionMoved(session)
        if claim is not None:
            self._store.note(claim, name, note).result()

    def _follow(
        self,
        request: TurnRequest,
        match: Match,
        end: End,
        claim: Claim,
        found: Found,
        following: array[int],
        stream: ServedStream,
    ) -> RunningTurn:
        base, resident = match.base, found.resident
        read = match.unread[:-1] if request.continue_final else match.unread
        tokens = len(following) + end.tokens
        given = match.unread[-1]["content"] if request.continue_final else ""
        thinking = request.thinking
        new = NewNode(
            id=request.node or new_id("resp"),
            parent=None if base is None else base.id,
            conversation=claim.session,
            tenant=request.tenant,
            session_key=request.session_key,
            read_ids=following,
            messages=encode([without_reasoning(message) for message in match.unread]),
            before=hash_after(match.before, read),
            given=given,
            tokens=tokens,
            record=request.record,
            title=_title(match.unread) if base is None else "",
            is_after_settled=end.node is not None and end.node.is_form,
        )
        is_exact = len(found.ids) == len(following) and not resident.cancelled_ids
        begun = Begun(
            new=new,
            claim=claim,
            resident=resident,
            ids=found.ids,
            starts_at=end.node if is_exact and not found.is_fork else None,
            tokens_before=found.tokens_before,
            may_be_settled=self._settling.may_be_settled(thinking, end.node, match.unread, given),
            drops=self._settling.drops(thinking),
        )
        facts = TurnFacts(
            state=found.state,
            node=new.id,
            session=new.conversation,
            prompt_tokens=tokens,
            cached_tokens=tokens - len(found.ids) - found.read,
            replayed_tokens=found.replayed,
            read_tokens=found.read,
            read_s=found.read_s,
        )
        store = self._store if request.store else None
        turn = RunningTurn(begun, stream, facts, store, self._states.residency, self._ended)
        with self._changed:
            self._running.add(turn)
        try:
            if store is not None:
                store.begin(claim, new)
        except BaseException:
            self._ended(turn)
            stream.record = None
            raise
        return turn

    def _found(
        self,
        request: TurnRequest,
        match: Match,
        claim: Claim,
        end: End,
        following: array[int],
        deadline: Deadline | None,
    ) -> Found:
        if match.resident is not None:
            resident = match.resident
            if request.forks:
                resident = self._states.fork_of(resident) or resident
            return found_at(resident, "resident", following)
        if end.node is None:
            return self._states.new(following, request.engine_salt)
        if end.node.is_form:
            return self._ends.settled(
                end,
                following,
                request.engine_salt,
                claim=claim if request.store else None,
                deadline=deadline,
            )
        moves = request.store and not request.has_siblings
        return self._states.after(
            end.node,
            following,
            request.engine_salt,
            moves=moves,
            evicts=request.has_siblings,
        )

    def _ended(self, turn: RunningTurn) -> None:
        with self._changed:
            self._running.discard(turn)
            self._changed.notify_all()

    # ---- other replicas --------------------------------------------------------------------------

    @property
    def ask_release(self) -> AskRelease | None:
        """How another replica is asked to release a conversation; if None, it is taken at once.

        It is called with the replica and the conversation, blocks for at most 200 ms, and returns
        whether the conversation was released.
        """
        return self._ownership.ask

    @ask_release.setter
    def ask_release(self, ask: AskRelease | None) -> None:
        self._ownership.ask = ask

    def release(self, session: str, within_s: float = 0.2) -> bool:
        """Give up a conversation, because another replica asks for it. Blocks.

        A running turn has the first half of the time to finish; after that it is ended and
        committed as it is, and its client gets the error `session_moved`.

        Args:
            session: The conversation's id.
            within_s: How long to wait for running turns.

        Returns:
            Whether this replica neither owns the conversation nor writes to it.
        """
        return self._ownership.give_up(session, lambda: self._end_turns(session, within_s))

    def park_all(self) -> None:
        """Save all idle sessions, and give up all conversations without a running turn. Blocks."""
        self._states.residency.park_all()
        self._ownership.give_up_idle()

    def owner_of(self, name: str) -> Replica | None:
        """Return the other replica that owns a conversation or a turn's conversation, if any does.

        Args:
            name: The id of a conversation, or of a turn, which may be running.
        """
        session = self._store.session_of(name)
        owner = None if session is None else self._store.owner(session)
        if owner is None or not owner.is_alive or owner.replica.name == self._store.replica:
            return None
        return owner.replica

    def _end_turns(self, session: str, within_s: float) -> bool:
        """End the turns of a conversation, and save and close its sessions."""
        for ends in (False, True):
            with self._changed:
                running = [turn for turn in self._running if _writes(turn, session)]
            if ends:
                for turn in running:
                    turn.hand_over()
            with self._changed:
                if self._changed.wait_for(lambda: not self._runs(session), within_s / 2):
                    break
        else:
            return False
        residency, belongs = self._states.residency, _belongs_to(session)
        while (resident := residency.claim(belongs, keeps=True, leaves=True)) is not None:
            residency.park(resident)
        return True

    def _lost(self, claim: Claim) -> None:
        """End turns that are being written with a claim that another replica has made void."""
        self._ownership.lost(claim)
        with self._changed:
            running = list(self._running)
        for turn in running:
            turn.lose(claim)

    def _is_running(self, session: str) -> bool:
        with self._changed:
            return self._runs(session)

    def _runs(self, session: str) -> bool:
        return session in self._starting or any(_writes(turn, session) for turn in self._running)

    # ---- memory, deletion, the end ---------------------------------------------------------------

    def wait_in(self, waiting: Waiting) -> None:
        """Make threads wait for the model in a context; see `Turns.wait_in`."""
        self._states.residency.waiting = self._ownership.waiting = waiting

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

    def begin_text(
        self, prompt: str | Sequence[int], options: StreamOptions, salt: str
    ) -> PlainTurn:
        """Start a completion of plain text or of token ids, outside the tree.

        Raises:
            CapacityError: Turns are running in all sequences.
            Exception: Any error that `Model.stream` raises.
        """
        with ExitStack() as stack:
            stack.enter_context(self.room())
            turn = begin_text(self._host, prompt, options, salt)
            turn.on_end = stack.pop_all().close
            return turn

    def conversations(self, tenant: str) -> list[tuple[str, float]]:
        """Return the ids of a tenant's conversations and when each was used, latest first."""
        return self._store.conversations(tenant)

    def titles(self, tenant: str) -> dict[str, str]:
        """Return how a tenant's conversations begin."""
        return self._store.titles(tenant)

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
        self._ends.save_to(self._settling.last_end(node), path)

    def delete(self, tenant: str, name: str) -> None:
        """Delete a conversation, or a turn with all turns that follow it, also on disk.

        Raises:
            NotFound: The tenant has no such conversation or turn.
            SessionBusy: A turn of the conversation is running.
            SessionMoved: Another replica has taken the conversation.
        """
        node = self._store.node(name)
        if node is not None and node.tenant == tenant:
            conversation = node.conversation
        elif self._store.has_conversation(tenant, name):
            conversation = name
        else:
            raise NotFound(f"delete: `name` must name a turn or a conversation, but {name[:80]!r} "
                           "names neither.")  # fmt: skip
        is_elsewhere = self.owner_of(conversation) is not None
        if is_elsewhere and self._store.is_running(conversation):
            raise SessionBusy(f"delete: {name} must be idle, but a turn is running.")
        claim = self._ownership.own(conversation)
        if claim is None:
            return  # its only turn had not been finished
        if not self._close_sessions_of(conversation):
            raise SessionBusy(f"delete: {name} must be idle, but a turn is running.")
        if node is not None and conversation != name:
            self._store.delete_tree(claim, name).result()
        else:
            self._store.delete_conversation(claim).result()

    def _delete_idle(self, claim: Claim, used: float | None = None) -> bool:
        if not self._close_sessions_of(claim.session):
            return False
        return self._store.delete_conversation(claim, used).result()

    def _close_sessions_of(self, conversation: str) -> bool:
        """Close a conversation's idle sessions; return whether none of its turns is running."""
        belongs = _belongs_to(conversation)
        with self._changed:
            is_starting = conversation in self._starting
            if is_starting or any(one.conversation == conversation for one in self._running):
                return False
        residency = self._states.residency
        while (resident := residency.claim(belongs, leaves=True)) is not None:
            residency.discard(resident)
        return not residency.find(belongs)

    def close(self) -> None:
        """Cancel and commit the running turns, park all sessions, and close the store.

        Other replicas then do not have to ask for the conversations.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._upkeep.close()
        self._saver.close()
        with self._changed:
            running = list(self._running)
        for turn in running:
            try:
                turn.end()
            except Exception as error:  # the others are to be committed all the same
                logger.warning("store: a turn could not be committed: %s", error)
        self._states.residency.park_all()
        self._heartbeat.close()
        if self._store.replica:
            try:
                self._store.leave()
            except SinkstreamError as error:  # others find out that this replica is gone
                logger.warning("store: the conversations could not be released: %s", error)
        self._store.close()


def _no_session(name: str) -> NotFound:
    return NotFound(f"sessions: there is no turn or conversation {name[:80]!r}.")


def _belongs_to(conversation: str) -> Callable[[Resident], bool]:
    return lambda one: one.node is not None and one.node.conversation == conversation


def _writes(turn: RunningTurn, session: str) -> bool:
    return turn.is_stored and turn.conversation == session


def _title(messages: Sequence[Message]) -> str:
    """Return how a conversation begins, for lists of conversations."""
    first = next((one["content"] for one in messages if one["role"] == "user"), "")
    return str(first or "")[:_TITLE]


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def identity_of(host: Host) -> str:
    """Describe what stored token ids and hashes depend on."""
    sinks, window = host.spec.kept(*host.window)
    template = blake2b((host.text.chat_template or "").encode(), digest_size=8).hexdigest()
    return f"{host.native.fingerprint()}, sinks {sinks}, window {window}, template {template}"
