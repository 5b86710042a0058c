"""Brings the end of a turn that messages follow into a session, and reads what that lacks."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from sinkstream.conversations.claim import Claim
from sinkstream.conversations.interrupted import (
    Deadline,
    ReadingCancelled,
    ReadingEnded,
    ReadingTimedOut,
)
from sinkstream.conversations.keyed_lock import KeyedLock
from sinkstream.conversations.node import Node, turn_of
from sinkstream.conversations.residency import Resident
from sinkstream.conversations.settling import End, Settling
from sinkstream.conversations.snapshots import state_at
from sinkstream.conversations.states import NOTHING, Found, States, found_at
from sinkstream.conversations.store import Store
from sinkstream.sessions.token_session import TokenSession
from sinkstream.streams.worker import wanted


class Ends:
    """See Note: [Settled forms] in `node.py`. Any thread may call it."""

    def __init__(self, states: States, store: Store, settling: Settling) -> None:
        """Use the sessions of `states`, and the forms that `settling` makes and stores."""
        self._states = states
        self._store = store
        self._settling = settling
        self._reading = KeyedLock()  # of each turn whose form is read

    def settled(
        self,
        end: End,
        following: array[int],
        salt: str,
        *,
        claim: Claim | None,
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
            claim: With which forms are stored, as the turn is; None if they are not.
            deadline: Of the request; None if it has none.

        Raises:
            ReadingCancelled: The request has ended meanwhile.
            ReadingTimedOut: Its time has passed.
            Exception: Any error that `after` raises.
        """
        node = end.node
        assert node is not None  # it is a form
        with self._reading_of(node, deadline):
            settling = self._settling
            end = settling.refreshed(end) if claim is None else settling.stored(end, claim)
            found = self._at_form(end, following, salt, deadline)
        passing = self._states.residency.claim(
            lambda one: one.is_passing and _is_of(one, node), leaves=True
        )
        if passing is not None:
            self._states.residency.discard(passing)
        resident = self._states.fork_or_use(found.resident, evicts=True)
        is_fork = resident is not found.resident
        begun = found_at(resident, found.state, following, found.read)
        return replace(begun, read=found.read, read_s=found.read_s, is_fork=is_fork)

    @contextmanager
    def _reading_of(self, form: Node, deadline: Deadline | None) -> Iterator[None]:
        """Let no other thread read the same form; wait for one that does.

        Raises:
            ReadingTimedOut: The deadline has passed.
        """
        waiting = self._states.residency.waiting
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
            resident = self._states.residency.at(name, following, keeps=True)
            if resident is not None:
                resident.node, resident.is_stored = node, not node.is_draft
                self._states.residency.hold(resident)
                return Found(resident, "resident", nothing, 0, 0)
        states = self._states
        found = states.undone(node, nothing) or states.rebuilt(node, nothing, salt, forms)
        resident = found.resident
        known = forms[0].node.parent if forms else node.id
        try:
            began = time.monotonic()
            if found.ids:
                self._read(resident.session, found.ids, node, deadline)
            read_s = time.monotonic() - began
            resident.saved_tokens = 0 if known is None else self._store.saved_tokens(known)
        except ReadingEnded:
            self._states.residency.take_back(resident, found.ids, found.tokens_before)
            raise
        except BaseException:
            self._states.residency.discard(resident)
            raise
        resident.is_stored = not node.is_draft
        resident.node, resident.undo, resident.cancelled_ids = node, None, array("i")
        states.residency.hold(resident)
        return replace(found, read=len(found.ids), read_s=read_s)

    def _read(
        self, session: TokenSession, ids: array[int], node: Node, deadline: Deadline | None
    ) -> None:
        """Read ids up to a form.

        Raises:
            ReadingCancelled: The request has ended meanwhile.
            ReadingTimedOut: Its time has passed.
        """
        left_s = None if deadline is None else deadline.left_s
        with (
            session.start_reading(ids.tolist(), state_at(node), left_s) as stream,
            self._states.residency.waiting(stream.cancel),
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
                found = self._at_form(self._settling.refreshed(end), NOTHING, salt, None)
            node = found.resident.node
            assert node is not None  # the form
            found = replace(found, ids=NOTHING)
        else:
            found = self._states.after(node, NOTHING, salt, moves=False)
        session = found.resident.session
        try:
            ids = found.ids[: -len(NOTHING)]
            if ids:
                session.read(ids.tolist(), state_at(node))
            session.save(path, wanted)
        except BaseException:
            self._states.residency.discard(found.resident)
            raise
        if ids:
            found.resident.node, found.resident.undo = node, None
        self._states.residency.release(found.resident)


def _is_of(resident: Resident, form: Node) -> bool:
    """Return whether a session is at the turn whose settled form is given."""
    return resident.node is not None and resident.node.id == turn_of(form.id)
