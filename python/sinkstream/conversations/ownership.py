"""Which conversations this replica may write: takes them, gives them up, and notices losses."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice

from sinkstream.conversations.claim import Claim, Replica
from sinkstream.conversations.store import Store
from sinkstream.conversations.turns import Waiting

logger = logging.getLogger("sinkstream")

AskRelease = Callable[[Replica, str], bool]
"""Asks another replica to give a conversation up; answers within 200 ms whether it has."""

_MOST = 1 << 12  # claims that are remembered: less than 2 MB


class Ownership:
    """The claims of this replica. Any thread may call it.

    The only process that uses a store has a claim to every conversation, and remembers none.
    """

    def __init__(self, store: Store, is_running: Callable[[str], bool]) -> None:
        """Claim conversations of `store`.

        Args:
            store: Where owners are written.
            is_running: Whether this replica runs a turn of a conversation: its claim is kept.
        """
        self._store = store
        self._is_running = is_running
        self._condition = threading.Condition()
        self._held: OrderedDict[str, Claim] = OrderedDict()  # the least recently used first
        self._changing: set[str] = set()  # being taken or given up by a thread
        self.ask: AskRelease | None = None
        self.waiting: Waiting = _waiting
        """What a thread is in while it waits for another thread, or for another replica."""

    def held(self, session: str) -> Claim | None:
        """Return the claim to a conversation; None if this replica has none."""
        with self._condition:
            return self._used(session)

    def confirmed(self, session: str) -> Claim | None:
        """Return the claim to a conversation if no other replica has taken it. Blocks briefly.

        None if it is being given up at this moment.
        """
        with self._condition:
            claim = None if session in self._changing else self._used(session)
        if claim is None or not self._store.replica:  # no other replica can take it
            return claim
        owner = self._store.owner(session)
        if owner is not None and owner.epoch == claim.epoch:
            return claim
        self.lost(claim)
        return None

    def begin(self, session: str) -> Claim:
        """Return the claim to a conversation that begins here."""
        claim = Claim(session, 1)
        with self._condition:
            self._hold(claim)
        return claim

    def own(self, session: str) -> Claim | None:
        """Return the claim to a conversation; take it if this replica has none. Blocks.

        Returns:
            None if there is no such conversation.

        Raises:
            StoreError: The store cannot be written.
        """
        return self.confirmed(session) or self._change(session, asks=True)

    def adopt(self, session: str) -> Claim | None:
        """Return the claim to a conversation, unless another living replica owns it. Blocks."""
        if (claim := self.confirmed(session)) is not None:
            return claim
        owner = self._store.owner(session)
        if owner is not None and owner.is_alive and owner.replica.name != self._store.replica:
            return None
        return self._change(session, asks=False)

    def _change(self, session: str, *, asks: bool) -> Claim | None:
        with self._unchanging(session):
            if (claim := self._used(session)) is not None:
                return claim
            self._changing.add(session)
        try:
            if asks:
                self._ask(session)
            claim = self._store.take(session)
            if claim is not None:
                with self._condition:
                    self._hold(claim)
            return claim
        finally:
            self._changed(session)

    def _ask(self, session: str) -> None:
        """Ask a living owner to give up a conversation."""
        owner = self._store.owner(session)
        if self.ask is None or owner is None or not owner.is_alive:
            return
        if owner.replica.name in ("", self._store.replica):
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
            self._store.give_up(claim)
            self.lost(claim)
            return True
        finally:
            self._changed(session)

    def give_up_idle(self) -> None:
        """Give up all conversations that have no running turn. Blocks."""
        with self._condition:
            kept = {session for session in self._held if self._is_running(session)}
            kept |= self._changing
            idle = [claim for session, claim in self._held.items() if session not in kept]
            self._changing.update(claim.session for claim in idle)
        try:
            self._store.give_up_each(idle)
            for claim in idle:
                self.lost(claim)
        finally:
            with self._condition:
                self._changing.difference_update(claim.session for claim in idle)
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

    def lost(self, claim: Claim) -> None:
        """Forget a claim."""
        with self._condition:
            if self._held.get(claim.session) == claim:
                del self._held[claim.session]

    def _used(self, session: str) -> Claim | None:
        if not self._store.replica:
            return Claim(session, 1)
        claim = self._held.get(session)
        if claim is not None:
            self._held.move_to_end(session)
        return claim

    def _hold(self, claim: Claim) -> None:
        if not self._store.replica:
            return
        self._held[claim.session] = claim
        self._held.move_to_end(claim.session)
        # Running turns write with their claims, so no other may be taken meanwhile.
        idle = (session for session in self._held if not self._is_running(session))
        for session in list(islice(idle, max(0, len(self._held) - _MOST))):
            del self._held[session]

    def _changed(self, session: str) -> None:
        with self._condition:
            self._changing.discard(session)
            self._condition.notify_all()


def _waiting(cancel: Callable[[], object] | None = None) -> AbstractContextManager[None]:
    return nullcontext()
