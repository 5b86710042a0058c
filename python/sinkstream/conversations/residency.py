"""Which turns are in the model's cache: sessions in a fixed number of seats, one user each.

A session is idle, running a turn, kept busy for a moment by maintenance, or leaving: it is
being saved, and then closed. A turn that needs it waits, and finds its snapshot. A request that
cannot get a seat is told at once. An idle session gives its seat to another conversation: sessions
that were never stored or will not be continued go first, then conversations with a single turn,
then the least recently used.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from sinkstream.conversations.node import Node
from sinkstream.conversations.turns import Waiting
from sinkstream.errors import CapacityError
from sinkstream.sessions.token_session import TokenSession

_LEAVING_S = 30.0  # the longest wait for a session that is being saved
_SAVER_S = 1.0  # and for the saver to begin with it: it may be writing others to a slow store
_BUSY_SAVING = ("kept", "leaving")


@dataclass(eq=False, slots=True)
class Resident:
    """A session in a seat."""

    session: TokenSession
    node: Node | None
    """The turn that it has read to its end; None for a new conversation."""
    state: Literal["idle", "running", "kept", "leaving"] = "running"
    cancelled_ids: array[int] = field(default_factory=lambda: array("i"))
    """Further ids that it has read of a turn that was cancelled before its reply."""
    undo: Node | None = None
    """The turn before, if the last one began in this session directly after it."""
    is_stored: bool = True
    """Whether `node` is in the store. If not, it exists only here."""
    saved_tokens: int = 0
    """Tokens up to the last turn before `node` that has a snapshot, or 0."""
    tried: Node | None = None
    """The turn that has been saved early, or could not be."""
    is_passing: bool = False
    """Whether the next message follows the settled form of `node` instead. It is not saved."""
    used: float = field(default_factory=time.monotonic)

    def rank(self) -> tuple[int, float]:
        """Return the session's place in the order in which sessions give up their seats."""
        is_spare = self.is_passing and self.undo is None
        if not self.is_stored or is_spare or self.node is None:
            return 0, self.used
        return (1 if self.node.parent is None else 2), self.used


class Residency:
    """The seats. Any thread may call it; nothing here waits for the model."""

    def __init__(
        self,
        seats: int,
        park: Callable[[Resident], None],
        is_due: Callable[[Resident], bool] = lambda _: False,
    ) -> None:
        """Offer seats.

        Args:
            seats: Their number.
            park: Makes an idle session's turn restorable without it.
            is_due: Tells whether a session is to be saved before its next turn, if that can begin
                soon.
        """
        self._seats = seats
        self._park = park
        self._is_due = is_due
        self._has_saver = False
        self.waiting: Waiting = plain_wait
        """What a thread is in while it waits for a session that another one uses."""
        self._condition = threading.Condition()
        self._changes = 0
        self._residents: list[Resident] = []
        self._reserved = 0  # seats without a session

    def all(self) -> list[Resident]:
        """Return the current residents."""
        with self._condition:
            return list(self._residents)

    # ---- using a session -------------------------------------------------------------------------

    def acquire(
        self, matches: Callable[[Resident], bool], *, keeps: bool = False, leaves: bool = False
    ) -> Resident | None:
        """Return an idle resident that matches, for the caller's exclusive use, or None.

        Args:
            matches: Tells whether a resident is wanted.
            keeps: Whether it is needed only for a moment, so that others wait for it.
            leaves: Whether it will be parked or closed, so that no snapshot has to come first.
        """
        began = time.monotonic()
        while True:
            with self._condition:
                found = [one for one in self._residents if matches(one)]
                found.sort(key=lambda one: -len(one.cancelled_ids))  # less is left to read
                may_wait = not leaves and time.monotonic() < began + _SAVER_S
                for one in found:
                    if one.state == "idle" and not (may_wait and self._waits_for_saver(one)):
                        one.state = "kept" if keeps else "running"
                        return one
                is_due = any(one.state == "idle" for one in found)
                is_saved = any(one.state in _BUSY_SAVING for one in found)
                seen = self._changes
            if is_due:
                self._await_change(seen, began + _SAVER_S)
            elif not is_saved or not self._await_change(seen, began + _LEAVING_S):
                return None

    def _await_change(self, seen: int, deadline: float) -> bool:
        """Wait until there are more changes than were seen; return whether there are in time."""
        with self.waiting(), self._condition:
            left = deadline - time.monotonic()
            return self._condition.wait_for(lambda: self._changes != seen, left)

    def _note_change(self) -> None:
        """Make waiting threads look again. The caller holds the lock."""
        self._changes += 1
        self._condition.notify_all()

    def at(self, node_id: str, following: Sequence[int], *, keeps: bool = False) -> Resident | None:
        """Acquire a session at the end of a turn, or past it by a prefix of `following`."""
        return self.acquire(lambda one: _is_at(one, node_id, following), keeps=keeps)

    def child_of(self, node_id: str) -> Resident | None:
        """Acquire a session whose last turn directly followed a given turn, and may be undone."""
        return self.acquire(
            lambda one: one.undo is not None and one.undo.id == node_id and not one.cancelled_ids
        )

    def find(self, matches: Callable[[Resident], bool]) -> bool:
        """Return whether a resident matches, regardless of its state."""
        with self._condition:
            return any(map(matches, self._residents))

    def release(self, resident: Resident) -> None:
        """Make a session idle."""
        with self._condition:
            if resident.state != "kept":
                resident.used = time.monotonic()
            resident.state = "idle"
            self._note_change()

    def keep(self, resident: Resident) -> bool:
        """Take an idle session for maintenance; return whether it was idle."""
        with self._condition:
            if resident.state != "idle" or resident not in self._residents:
                return False
            resident.state = "kept"
            return True

    def next_to_save(
        self, needs_saving: Callable[[Resident], bool], count: int, is_ending: threading.Event
    ) -> Resident | None:
        """Wait until a session is to be saved, and keep it; None once `is_ending` is set.

        Sessions that are due come first: their next turns wait for that. While all seats are taken,
        those that give up their seats next are saved early.

        Args:
            needs_saving: Tells whether parking a session would write its snapshot.
            count: The number of sessions to save early.
            is_ending: Call `wake` after setting it.
        """
        with self._condition:
            while not is_ending.is_set():
                one = self._due() or self._to_save_early(needs_saving, count)
                if one is not None:
                    one.state = "kept"
                    return one
                self._condition.wait()
        return None

    def set_saver(self, has_saver: bool) -> None:
        """Say whether a thread calls `next_to_save`, so that turns may wait for it."""
        with self._condition:
            self._has_saver = has_saver
            self._note_change()

    def _waits_for_saver(self, one: Resident) -> bool:
        """Return whether an idle session is saved first. The caller holds the lock."""
        return self._has_saver and one.tried is not one.node and self._is_due(one)

    def _due(self) -> Resident | None:
        due = filter(self._waits_for_saver, self._idle())
        return min(due, key=lambda one: one.used, default=None)

    def _to_save_early(
        self, needs_saving: Callable[[Resident], bool], count: int
    ) -> Resident | None:
        victims = (one for one in self._next_victims(count) if one.tried is not one.node)
        return next(filter(needs_saving, victims), None)

    def _next_victims(self, count: int) -> list[Resident]:
        """Return the idle sessions that give up their seats first. The caller holds the lock."""
        return sorted(self._idle(), key=Resident.rank)[:count] if self._is_full() else []

    def _is_full(self) -> bool:
        return len(self._residents) + self._reserved >= self._seats

    def _idle(self) -> list[Resident]:
        return [one for one in self._residents if one.state == "idle"]

    def wake(self) -> None:
        """Make waiting threads look again."""
        with self._condition:
            self._note_change()

    def hold(self, resident: Resident) -> None:
        """Keep an acquired session for a moment: others wait for it."""
        with self._condition:
            resident.state, resident.used = "kept", time.monotonic()
            self._note_change()

    def use(self, resident: Resident) -> Resident:
        """Use a session that the caller keeps for a turn."""
        with self._condition:
            resident.state = "running"
            self._note_change()
        return resident

    # ---- seats -----------------------------------------------------------------------------------

    def take_seat(self) -> None:
        """Reserve a seat; park an idle session if all are taken.

        Raises:
            CapacityError: Turns are running in all of them.
        """
        deadline = time.monotonic() + _LEAVING_S
        while True:
            with self._condition:
                if not self._is_full():
                    self._reserved += 1
                    return
                victim = self._acquire_victim()
                is_kept = any(one.state == "kept" for one in self._residents)
                seen = self._changes
            if victim is not None:
                self._retire(victim, reserves=True)
                return
            if not is_kept or not self._await_change(seen, deadline):
                raise CapacityError(
                    f"stream: all {self._seats} sequences are running. Try again when one has "
                    "ended, or load the model with a larger `max_sequences`."
                )

    def park_idle(self) -> bool:
        """Park an idle session and free its seat; return whether there was one."""
        with self._condition:
            victim = self._acquire_victim()
        if victim is None:
            return False
        self._retire(victim, reserves=False)
        return True

    def _acquire_victim(self) -> Resident | None:
        """Acquire the idle session that gives up its seat first. The caller holds the lock."""
        victim = min(self._idle(), key=Resident.rank, default=None)
        if victim is not None:
            victim.state = "leaving"
        return victim

    def park_all(self) -> None:
        """Park all idle sessions, and those that are being saved once that is done."""
        deadline = time.monotonic() + _LEAVING_S
        while True:
            with self._condition:
                seen = self._changes
                is_saved = any(one.state in _BUSY_SAVING for one in self._residents)
            if self.park_idle():
                continue
            if not is_saved or not self._await_change(seen, deadline):
                return

    def park(self, resident: Resident) -> None:
        """Park a session that the caller has acquired or keeps."""
        self._retire(resident, reserves=False)

    def _retire(self, victim: Resident, *, reserves: bool) -> None:
        try:
            self._park(victim)
        finally:
            with self._condition:
                self._residents.remove(victim)
                self._reserved += reserves
                self._note_change()
            victim.session.close()

    def try_seat(self, *, evicts: bool = False) -> bool:
        """Reserve a seat if one is free; return whether it was. Waits for no other thread.

        With `evicts`, the seat of an idle session is free, too.
        """
        with self._condition:
            if not self._is_full():
                self._reserved += 1
                return True
            victim = self._acquire_victim() if evicts else None
        if victim is None:
            return False
        self._retire(victim, reserves=True)
        return True

    def free_seat(self) -> None:
        """Give back a reserved seat."""
        with self._condition:
            self._reserved -= 1
            self._note_change()

    def seat(self, resident: Resident) -> Resident:
        """Put a running session into the seat that was reserved for it."""
        with self._condition:
            self._reserved -= 1
            self._residents.append(resident)
        return resident

    def give_back(self, resident: Resident) -> None:
        """Make an acquired session idle if it is at the end of a turn; otherwise close it."""
        if resident.node is None:
            self.discard(resident)
        else:
            self.release(resident)

    def take_back(self, resident: Resident, ids: array[int], tokens_before: int) -> None:
        """Return an acquired session to its state before it read ids, or note how far it has read.

        Args:
            resident: The session.
            ids: What it was to read.
            tokens_before: Of its sequence, before that.

        After an error, the session is closed.
        """
        try:
            self._take_back(resident, ids, tokens_before)
        except BaseException:
            self.discard(resident)
            raise

    def _take_back(self, resident: Resident, ids: array[int], tokens_before: int) -> None:
        node, session = resident.node, resident.session
        if node is None:
            self.discard(resident)
            return
        resident.undo = None  # the engine may have begun the turn: that is what it would undo
        session.conclude_last_turn()
        tokens = session.stats.tokens
        if tokens != tokens_before and not undo(resident, node):
            # A reply's last token is read with the next turn: until then it is not in `tokens`.
            before = tokens_before if resident.cancelled_ids else node.tokens
            resident.cancelled_ids.extend(ids[: tokens - before])
        self.release(resident)

    def discard(self, resident: Resident) -> None:
        """Close an acquired session whose contents are not needed."""
        with self._condition:
            if resident in self._residents:
                self._residents.remove(resident)
            self._note_change()
        resident.session.close()


@contextmanager
def plain_wait(cancel: Callable[[], object] | None = None) -> Iterator[None]:
    """Wait in nothing: implements `Waiting`."""
    yield


def undo(resident: Resident, node: Node) -> bool:
    """Undo an acquired session's last turn, which began at `node`; return whether that succeeded.

    It fails if tokens have left the window since: a snapshot may be nearer than what the session
    would have to read again.
    """
    if not resident.session.try_undo():
        return False
    resident.node, resident.undo, resident.is_passing = node, None, False
    return True


def _is_at(resident: Resident, node_id: str, following: Sequence[int]) -> bool:
    node, ids = resident.node, resident.cancelled_ids
    if node is None or node.id != node_id or len(ids) >= len(following):
        return False
    return list(following[: len(ids)]) == ids.tolist()
