"""Who may write a conversation of a shared store: each has one owner, and an epoch.

Every write carries the epoch of its owner's claim. If another replica has taken the conversation
since, which raises the epoch, nothing is written, and the write fails with `SessionMoved`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from sinkstream.conversations.conversation_writer import ConversationWriter
from sinkstream.conversations.database import GONE_S, Connection, in_marks
from sinkstream.conversations.deletion import close_unfinished
from sinkstream.conversations.errors import SessionMoved, StoreError
from sinkstream.conversations.node import NewNode
from sinkstream.conversations.store import Store

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Replica:
    """A process that shares a store with others."""

    name: str
    address: str
    """Where others reach it; "" if they cannot."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The replica that last took a conversation."""

    replica: Replica
    """Its name is "" if the conversation was given up."""
    epoch: int
    is_alive: bool


class Claim(ConversationWriter):
    """Writes a conversation until another replica takes it."""

    def __init__(self, owners: Owners, conversation: str, epoch: int) -> None:
        super().__init__(owners.store, conversation)
        self.owner = owners.replica
        self.epoch = epoch
        self._owners = owners
        self._has_begun = True

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Claim):
            return NotImplemented
        return (self.conversation, self.epoch) == (other.conversation, other.epoch)

    def __hash__(self) -> int:
        return hash((self.conversation, self.epoch))

    def __repr__(self) -> str:
        return f"Claim({self.conversation!r}, {self.epoch})"

    def check(self, connection: Connection) -> None:
        """Refuse to write if the claim is no longer the latest.

        The conversation cannot be taken before the end of the transaction.

        Raises:
            SessionMoved: It has been taken since, or was deleted.
            StoreError: Its beginning was not written.
        """
        row = connection.execute(
            f"SELECT epoch FROM owners WHERE session = ?{connection.row_lock}", [self.conversation]
        ).fetchone()
        if row is None and not self._has_begun:
            raise StoreError(
                f"store: the beginning of the conversation {self.conversation} was not written, so "
                "none of it can be kept. See the server's log."
            )
        if row is None or row[0] != self.epoch:
            raise SessionMoved(self.conversation)

    def queued(self, done: Future[_Result]) -> Future[_Result]:
        """Say that the claim is lost if a write finds that."""

        def report(ended: Future[_Result]) -> None:
            if isinstance(ended.exception(), SessionMoved):
                self._owners.on_lost(self)

        done.add_done_callback(report)
        return done

    def begin(self, new: NewNode) -> Future[None]:
        """Queue the beginning of a turn; the first one makes this replica the owner."""

        def note(ended: Future[None]) -> None:
            self._has_begun = new.parent is not None or ended.exception() is None

        done = super().begin(new)
        done.add_done_callback(note)
        return done


class Owners:
    """The owners of conversations in a store, as one replica sees and changes them.

    Any thread may call any method.
    """

    def __init__(self, store: Store, replica: str) -> None:
        """Take conversations for the replica with a name."""
        self.store = store
        self.replica = replica
        self.on_lost: Callable[[Claim], None] = lambda _: None
        """Called by the writing thread when another replica has taken a conversation."""

    def take(self, session: str) -> Claim | None:
        """Take a conversation from its owner, and close its running turns.

        Returns:
            The claim; None if there is no such conversation, or none of its turns is left.
        """

        def job(connection: Connection) -> Claim | None:
            row = connection.execute(
                f"SELECT epoch FROM owners WHERE session = ?{connection.row_lock}", [session]
            ).fetchone()
            if row is None:
                return None
            claim = Claim(self, session, row[0] + 1)
            connection.execute(
                "UPDATE owners SET replica = ?, epoch = ? WHERE session = ?",
                (self.replica, claim.epoch, session),
            )
            close_unfinished(connection, session)
            found = connection.execute("SELECT 1 FROM owners WHERE session = ?", [session])
            return claim if found.fetchone() is not None else None

        return self.store.submit(job).result()

    def give_up(self, claims: Sequence[Claim]) -> None:
        """Give up some conversations, unless they have been taken since.

        Others then do not have to ask for them.
        """
        ordered = sorted(claims, key=lambda claim: claim.conversation)  # as others lock them

        def job(connection: Connection) -> None:
            for claim in ordered:
                connection.execute(
                    "UPDATE owners SET replica = '' WHERE session = ? AND epoch = ?",
                    (claim.conversation, claim.epoch),
                )

        self.store.submit(job).result()

    def give_up_all(self) -> None:
        """Give up all conversations."""

        def job(connection: Connection) -> None:
            rows = connection.execute(
                f"SELECT session FROM owners WHERE replica = ?{connection.row_lock}",
                [self.replica],
            ).fetchall()
            given_up = sorted(session for (session,) in rows)
            for marks, some in in_marks(given_up):
                connection.execute(
                    f"UPDATE owners SET replica = '' WHERE session IN ({marks})", some
                )

        self.store.submit(job).result()

    def announce(self, address: str) -> None:
        """Announce that this replica is alive, and at which address."""

        def job(connection: Connection) -> None:
            connection.execute(
                f"INSERT INTO replicas VALUES (?, ?, {self.store.clock}) ON CONFLICT (name) "
                "DO UPDATE SET address = excluded.address, seen = excluded.seen",
                (self.replica, address),
            )

        self.store.submit(job).result()

    def leave(self) -> None:
        """Give up all conversations of this replica, which is shutting down."""
        self.give_up_all()

        def job(connection: Connection) -> None:
            connection.execute("DELETE FROM replicas WHERE name = ?", [self.replica])

        self.store.submit(job).result()

    def owner(self, session: str) -> Owner | None:
        """Return who last took a conversation; None if there is no such conversation."""
        rows = self.store.rows(
            "SELECT replica, COALESCE(address, ''), epoch, "
            f"COALESCE(seen, 0) > {self.store.clock} - ? "
            "FROM owners LEFT JOIN replicas ON name = replica WHERE session = ?",
            [GONE_S, session],
        )
        if not rows:
            return None
        name, address, epoch, is_alive = rows[0]
        return Owner(Replica(name, address), epoch, bool(is_alive))

    def abandoned(self) -> list[str]:
        """Return conversations with a running turn whose owner is dead, or has this one's name."""
        return [
            str(row[0])
            for row in self.store.rows(
                "SELECT DISTINCT conversation FROM nodes JOIN owners ON session = conversation "
                "LEFT JOIN replicas ON name = replica WHERE hash IS NULL "
                f"AND (replica = ? OR COALESCE(seen, 0) <= {self.store.clock} - ?)",
                [self.replica, GONE_S],
            )
        ]
