"""Brings the end of a turn that messages follow into a session, and reads what that lacks."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sinkstream.conversations.conversation_writer import ConversationWriter
from sinkstream.conversations.errors import ReadingCancelled, ReadingEnded, ReadingTimedOut
from sinkstream.conversations.node import Node, turn_of
from sinkstream.conversations.residency import Resident
from sinkstream.conversations.restore import NOTHING, Found, StateRestorer, found_at
from sinkstream.conversations.snapshots import state_at
from sinkstream.conversations.store import Store
from sinkstream.conversations.thoughts_dropped import End, ThoughtsDropped
from sinkstream.conversations.turns import Waiting
from sinkstream.sessions.token_session import TokenSession
from sinkstream.streams.worker import wanted


class KeyedLock:
    """Lets one thread at a time do what has a name. Names that are not in use take no memory."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: set[str] = set()

    @contextmanager
    def of(self, name: str, waiting: Waiting, until: float | None = None) -> Iterator[None]:
        """Hold the lock of a name. Wait for it, if another thread has it, in `waiting()`.

        Raises:
            TimeoutError: It is not free at the time `until`, by `time.monotonic`.
        """
        if not self._try_take(name):
            left = None if until is None else until - time.monotonic()
            with waiting(), self._changed:
                if not self._changed.wait_for(lambda: name not in self._held, left):
                    raise TimeoutError
                self._held.add(name)
        try:
            yield
        finally:
            with self._changed:
                self._held.discard(name)
                self._changed.notify_all()

    def _try_take(self, name: str) -> bool:
        with self._changed:
            is_free = name not in self._held
            self._held.add(name)
            return is_free


_MOST_S = 1e9  # as for `timeout_s`
_LEAST_S = 1e-6  # a request that is late ends after its first step


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a request has to end."""

    timeout_s: float
    """After this time from its beginning."""
    until: float
    """That moment, by `time.monotonic`."""

    @property
    def left_s(self) -> float:
        """Return the rest of the time, which is above 0."""
        return max(_LEAST_S, self.until - time.monotonic())


def deadline_of(timeout_s: float | None, called_at: float) -> Deadline | None:
    """Return the deadline of a request that was made at `called_at`; None without one.

    A time that is out of range is not looked at: the request's stream refuses it.
    """
    if timeout_s is None or not 0 < timeout_s <= _MOST_S:
        return None
    return Deadline(timeout_s, called_at + timeout_s)


class SessionAt:
    """See Note: [Settled forms] in `node.py`. Any thread may call it."""

    def __init__(self, restorer: StateRestorer, store: Store, dropped: ThoughtsDropped) -> None:
        """Use the sessions of `restorer`, and the forms that `dropped` makes and stores."""
        self._restorer = restorer
        self._store = store
        self._dropped = dropped
        self._reading = KeyedLock()  # of each turn whose form is read

    def settled(
        self,
        end: End,
        following: array[int],
        salt: str,
        *,
        writer: ConversationWriter | None,
        deadline: Deadline | None,
    ) -> Found:
        """Bring the settled form of a turn into a session, and begin a turn in a fork of it.

        What the form lacks is read at once. The turn runs in a fork, because the next message
        follows the form again; or in the session itself, which is then restorable, if all seats
        are running.

        Args:
            end: The settled form.
            following: What comes after it.
            salt: Of a session that is opened.
            writer: Stores forms, as the turn is stored; None if they are not.
            deadline: Of the request; None if it has none.

        Raises:
            ReadingCancelled: The request has ended meanwhile.
            ReadingTimedOut: Its time has passed.
            Exception: Any error that `after` raises.
        """
        node = end.node
        assert node is not None  # it is a form
        with self._reading_of(node, deadline):
            dropped = self._dropped
            end = dropped.refreshed(end) if writer is None else dropped.stored(end, writer)
            found = self._at_form(end, following, salt, deadline)
        passing = self._restorer.residency.acquire(
            lambda one: one.is_passing and _is_of(one, node), leaves=True
        )
        if passing is not None:
            self._restorer.residency.discard(passing)
        resident = self._restorer.fork_or_use(found.resident, evicts=True)
        is_fork = resident is not found.resident
        begun = found_at(resident, found.state, following, found.read)
        return replace(begun, read=found.read, read_s=found.read_s, is_fork=is_fork)

    @contextmanager
    def _reading_of(self, form: Node, deadline: Deadline | None) -> Iterator[None]:
        """Let no other thread read the same form; wait for one that does.

        Raises:
            ReadingTimedOut: The deadline has passed.
        """
        waiting = self._restorer.residency.waiting
        with ExitStack() as stack:
            until = None if deadline is None else deadline.until
            try:
                stack.enter_context(self._reading.of(turn_of(form.id), waiting, until))
            except TimeoutError:
                assert deadline is not None  # otherwise there is no limit
                raise ReadingTimedOut(deadline.timeout_s) from None
            yield

    def _at_form(
        self, end: End, following: array[int], salt: str, deadline: Deadline | None
    ) -> Found:
        """Return a kept session at a settled form, and how many tokens that has read."""
        node, forms = end.node, end.forms
        assert node is not None  # it is a form
        nothing = array("i")
        for name in filter(None, (node.id, end.draft)):
            resident = self._restorer.residency.at(name, following, keeps=True)
            if resident is not None:
                resident.node, resident.is_stored = node, not node.is_draft
                self._restorer.residency.hold(resident)
                return Found(resident, "resident", nothing, 0, 0)
        restorer = self._restorer
        found = restorer.undone(node, nothing) or restorer.rebuilt(node, nothing, salt, forms)
        resident = found.resident
        known = forms[0].node.parent if forms else node.id
        try:
            began = time.monotonic()
            if found.ids:
                self._read(resident.session, found.ids, node, deadline)
            read_s = time.monotonic() - began
            resident.saved_tokens = 0 if known is None else self._store.saved_tokens(known)
        except ReadingEnded:
            self._restorer.residency.take_back(resident, found.ids, found.tokens_before)
            raise
        except BaseException:
            self._restorer.residency.discard(resident)
            raise
        resident.is_stored = not node.is_draft
        resident.node, resident.undo, resident.cancelled_ids = node, None, array("i")
        restorer.residency.hold(resident)
        return replace(found, read=len(found.ids), read_s=read_s)

    def _read(
        self, session: TokenSession, ids: array[int], node: Node, deadline: Deadline | None
    ) -> None:
        """Read ids up to the end of a turn, or up to a form.

        Raises:
            ReadingCancelled: The request has ended meanwhile.
            ReadingTimedOut: Its time has passed.
        """
        left_s = None if deadline is None else deadline.left_s
        with (
            session.start_reading(ids.tolist(), state_at(node), left_s) as stream,
            self._restorer.residency.waiting(stream.cancel),
        ):
            reason = stream.result().finish_reason
        if reason == "cancelled":
            raise ReadingCancelled(
                "stream: the request was ended while its conversation was being read."
            )
        if reason == "timeout":
            assert deadline is not None  # it has ended the stream
            raise ReadingTimedOut(deadline.timeout_s)
        session.state = state_at(node)

    def save_to(self, end: End, path: Path) -> None:
        """Bring an end of a stored turn into a session, and write that session to a file.

        Raises:
            OSError: The file cannot be written.
            Exception: Any error that `after` raises.
        """
        node = end.node
        assert node is not None  # there is a turn
        # The salt of its requests is not stored: a session that is opened shares with none.
        salt = f"of {node.id}"
        if node.is_form:
            with self._reading_of(node, None):
                found = self._at_form(self._dropped.refreshed(end), NOTHING, salt, None)
            node = found.resident.node
            assert node is not None  # the form
            found = replace(found, ids=NOTHING)
        else:
            found = self._restorer.after(node, NOTHING, salt, moves=False)
        session = found.resident.session
        try:
            ids = found.ids[: -len(NOTHING)]
            if ids:
                self._read(session, ids, node, None)
            session.save(path, wanted)
        except BaseException:
            self._restorer.residency.discard(found.resident)
            raise
        if ids:
            found.resident.node, found.resident.undo = node, None
        self._restorer.residency.release(found.resident)


def _is_of(resident: Resident, form: Node) -> bool:
    """Return whether a session is at the turn whose settled form is given."""
    return resident.node is not None and resident.node.id == turn_of(form.id)
