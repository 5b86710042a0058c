"""Which conversations this replica may write: takes them, gives them up, and notices losses."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

from sinkstream.cluster.owners import Claim, Owner, Owners, Replica
from sinkstream.conversations.database import GONE_S
from sinkstream.conversations.fence import Fence, Noted
from sinkstream.conversations.running_turns import RunningTurns
from sinkstream.conversations.snapshot_files import SnapshotFolder
from sinkstream.errors import SinkstreamError

logger = logging.getLogger("sinkstream")

AskRelease = Callable[[Replica, str], bool]
"""Asks another replica to give a conversation up; answers within 200 ms whether it has."""

_MOST = 1 << 12  # claims that are remembered: less than 2 MB
_BEAT_S = 5.0  # a replica that is not seen for 30 s is gone
_STEP_S = 5.0  # of a clock: a look at it takes less
_ORPHANS_S = 3600.0
"""How often files without a row are deleted, and how old they must be: others are being written."""


class ReplicaFence(Fence):
    """The claims of a replica. Any thread may call it."""

    def __init__(self, owners: Owners, address: str = "") -> None:
        """Claim conversations of a store, for the replica whose `owners` these are.

        Args:
            owners: Where owners are written.
            address: Where other replicas reach this one; "" if they cannot.
        """
        super().__init__(owners.store, owners.replica)
        owners.on_lost = self._lost
        self.owners = owners
        self.ask: AskRelease | None = None
        """How another replica is asked to release a conversation; if None, it is taken at once.

        It is called with the replica and the conversation, blocks for at most 200 ms, and returns
        whether the conversation was released."""
        self._running: RunningTurns | None = None
        self._condition = threading.Condition()
        self._held: OrderedDict[str, Claim] = OrderedDict()  # the least recently used first
        self._changing: set[str] = set()  # being taken or given up by a thread
        self._swept = time.monotonic()
        ((clock,),) = owners.store.rows(f"SELECT {owners.store.clock}")
        self._looked = float(clock), time.monotonic()
        """What the store's clock and the monotonic one said at the last look."""
        self._trusted_at = float("-inf")
        """From when on the store's clock is trusted again."""
        self._heartbeat = Heartbeat(owners, address)

    def watch(self, running: RunningTurns) -> None:
        """Begin to look after the conversations of this process; called once."""
        self._running = running
        self._heartbeat.start()

    def close(self) -> None:
        """Give up all conversations; afterwards, this replica is no longer announced."""
        self._heartbeat.close()
        try:
            self.owners.leave()
        except SinkstreamError as error:  # others find out that this replica is gone
            logger.warning("store: the conversations could not be released: %s", error)

    # ---- claims ----------------------------------------------------------------------------------

    def begin(self, conversation: str) -> Claim:
        """Return the claim to a conversation that begins here."""
        claim = Claim(self.owners, conversation, 1)
        with self._condition:
            self._hold(claim)
        return claim

    def held(self, conversation: str) -> Claim | None:
        """Return the claim to a conversation; None if this replica has none."""
        with self._condition:
            return self._used(conversation)

    def confirmed(self, conversation: str) -> Claim | None:
        """Return the claim to a conversation if no other replica has taken it. Blocks briefly.

        None if it is being given up at this moment.
        """
        with self._condition:
            claim = None if conversation in self._changing else self._used(conversation)
        if claim is None:
            return None
        owner = self.owners.owner(conversation)
        if owner is not None and owner.epoch == claim.epoch:
            return claim
        self._forget(claim)
        return None

    def own(self, conversation: str) -> Claim | None:
        """Return the claim to a conversation; take it if this replica has none. Blocks.

        Returns:
            None if there is no such conversation.

        Raises:
            StoreError: The store cannot be written.
        """
        return self.confirmed(conversation) or self._change(conversation, asks=True)

    def adopt(self, conversation: str) -> Claim | None:
        """Return the claim to a conversation, unless another living replica owns it. Blocks."""
        if (claim := self.confirmed(conversation)) is not None:
            return claim
        if self._is_other(self.owners.owner(conversation)):
            return None
        return self._change(conversation, asks=False)

    def _is_other(self, owner: Owner | None) -> bool:
        """Return whether an owner is another replica, or none, and is alive."""
        return owner is not None and owner.is_alive and owner.replica.name != self.owners.replica

    def _change(self, session: str, *, asks: bool) -> Claim | None:
        with self._unchanging(session):
            if (claim := self._used(session)) is not None:
                return claim
            self._changing.add(session)
        try:
            if asks:
                self._ask(session)
            claim = self.owners.take(session)
            if claim is not None:
                with self._condition:
                    self._hold(claim)
            return claim
        finally:
            self._changed(session)

    def _ask(self, session: str) -> None:
        """Ask a living owner to give up a conversation."""
        owner = self.owners.owner(session)
        if self.ask is None or owner is None or not owner.is_alive:
            return
        if owner.replica.name in ("", self.owners.replica):
            return
        try:
            with self.waiting():
                is_released = self.ask(owner.replica, session)
        except Exception as error:  # of the network: the conversation can be taken all the same
            logger.info("store: replica %s cannot be reached: %s", owner.replica.name, error)
            return
        if not is_released:
            logger.info("store: taking a conversation over from replica %s", owner.replica.name)

    def give_up(self, session: str, end_turns: Callable[[], bool]) -> bool:
        """Give up a conversation after ending and parking its turns and sessions here. Blocks.

        Args:
            session: The conversation.
            end_turns: Ends its turns and parks its sessions; returns whether it succeeded.

        Returns:
            Whether this replica now has no claim to it.
        """
        with self._unchanging(session):
            claim = self._used(session)
            if claim is None:
                return True
            self._changing.add(session)
        try:
            if not end_turns():
                return False
            self.owners.give_up([claim])
            self._forget(claim)
            return True
        finally:
            self._changed(session)

    def give_up_idle(self) -> None:
        """Give up all conversations that have no running turn. Blocks."""
        with self._condition:
            kept = {session for session in self._held if self._runs(session)}
            kept |= self._changing
            idle = [claim for session, claim in self._held.items() if session not in kept]
            self._changing.update(claim.conversation for claim in idle)
        try:
            self.owners.give_up(idle)
            for claim in idle:
                self._forget(claim)
        finally:
            with self._condition:
                self._changing.difference_update(claim.conversation for claim in idle)
                self._condition.notify_all()

    @contextmanager
    def _unchanging(self, session: str) -> Iterator[None]:
        """Hold the lock while no thread is taking a conversation, or giving it up."""
        with self._condition:
            if session not in self._changing:
                yield
                return
        with self.waiting(), self._condition:
            self._condition.wait_for(lambda: session not in self._changing)
            yield

    def _lost(self, claim: Claim) -> None:
        """End turns that are being written with a claim that another replica has made void."""
        self._forget(claim)
        if self._running is not None:
            self._running.lose(claim)

    def _forget(self, claim: Claim) -> None:
        with self._condition:
            if self._held.get(claim.conversation) == claim:
                del self._held[claim.conversation]

    def _used(self, session: str) -> Claim | None:
        claim = self._held.get(session)
        if claim is not None:
            self._held.move_to_end(session)
        return claim

    def _hold(self, claim: Claim) -> None:
        self._held[claim.conversation] = claim
        self._held.move_to_end(claim.conversation)
        # Running turns write with their claims, so no other may be taken meanwhile.
        idle = (session for session in self._held if not self._runs(session))
        for session in list(islice(idle, max(0, len(self._held) - _MOST))):
            del self._held[session]

    def _runs(self, session: str) -> bool:
        return self._running is not None and self._running.writes(session)

    def _changed(self, session: str) -> None:
        with self._condition:
            self._changing.discard(session)
            self._condition.notify_all()

    # ---- other replicas --------------------------------------------------------------------------

    def owner_of(self, name: str) -> Replica | None:
        """Return the other replica that owns a conversation or a turn's conversation, if any does.

        Args:
            name: The id of a conversation, or of a turn, which may be running.
        """
        session = self.store.session_of(name)
        owner = None if session is None else self.owners.owner(session)
        return owner.replica if owner is not None and self._is_other(owner) else None

    def is_elsewhere(self, name: str) -> bool:
        """Return whether another living replica owns a conversation, or a turn's conversation."""
        return self.owner_of(name) is not None

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
        running = self._running
        assert running is not None  # no other replica can ask before
        return self.give_up(session, lambda: running.hand_over(session, within_s))

    def park_all(self) -> None:
        """Save all idle sessions, and give up all conversations without a running turn. Blocks."""
        if self._running is not None:
            self._running.residency.park_all()
        self.give_up_idle()

    # ---- upkeep ----------------------------------------------------------------------------------

    def look_after(self, noted: Noted) -> None:
        """Close the turns of dead replicas, and those of an earlier replica with this name.

        Once an hour, also delete files without a row.
        """
        is_trusted = False
        with noted():
            is_trusted = self._trusts_clock()
        sessions: list[str] = []
        if is_trusted:
            super().look_after(noted)
            with noted():
                sessions = self.owners.abandoned()
        for session in sessions:
            with noted():
                self.adopt(session)
        if time.monotonic() - self._swept > _ORPHANS_S:
            self._swept = time.monotonic()
            with noted():
                self._delete_orphans()

    def _trusts_clock(self) -> bool:
        """Return whether the store's clock says which replicas are gone.

        If it was set, all of them look gone, or none, until each has said that it is alive.
        """
        ((clock,),) = self.store.rows(f"SELECT {self.store.clock}")
        before, self._looked = self._looked, (float(clock), time.monotonic())
        passed, should_have = (new - old for new, old in zip(self._looked, before, strict=True))
        if abs(passed - should_have) > _STEP_S:
            logger.warning("store: its clock was set by %+.0f s", passed - should_have)
            self._trusted_at = self._looked[1] + GONE_S
        return self._looked[1] >= self._trusted_at

    def _delete_orphans(self) -> None:
        files = self.store.files
        if isinstance(files, SnapshotFolder):
            names = [file for (file,) in self.store.rows("SELECT file FROM snapshots")]
            files.delete_others(names, _ORPHANS_S)


class Heartbeat:
    """A thread that announces a replica, even while upkeep writes snapshots for minutes."""

    def __init__(self, owners: Owners, address: str) -> None:
        self._owners = owners
        self._address = address
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="sinkstream-heartbeat", daemon=True)

    def start(self) -> None:
        """Announce the replica until `close`."""
        self._thread.start()

    def close(self) -> None:
        """End the thread: afterwards, nothing is announced. May be called more than once."""
        self._is_ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def _loop(self) -> None:
        while not self._is_ending.wait(_BEAT_S):
            try:
                self._owners.announce(self._address)
            except (OSError, SinkstreamError) as error:
                logger.warning("store: this replica could not report that it is alive: %s", error)
