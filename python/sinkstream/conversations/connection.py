"""What a store needs from a database: statements with `?` for values, in transactions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

Result = TypeVar("Result")


class Cursor(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """Return how many rows the statement changed."""
        ...

    def fetchone(self) -> Any:
        """Return the next row, or None."""
        ...

    def fetchall(self) -> list[Any]:
        """Return all remaining rows."""
        ...


class Connection(Protocol):
    """What a job uses, inside a transaction."""

    clock: str
    """The database's time in seconds since 1970, as an expression."""
    row_lock: str
    """Follows a SELECT whose rows must not change until the end of the transaction."""

    def execute(self, query: str, values: Sequence[Any] = ()) -> Cursor:
        """Run a statement."""
        ...


class WriteConnection(Connection, Protocol):
    """The connection of a store's one writing thread."""

    def begin(self) -> None:
        """Begin a transaction; connect again if the connection was lost."""
        ...

    def commit(self) -> None:
        """Commit it."""
        ...

    def rollback(self) -> None:
        """Roll it back, if there is one."""
        ...

    def is_transient(self, error: Exception) -> bool:
        """Return whether the same transaction may succeed if it is retried."""
        ...

    def shown(self, error: Exception) -> Exception:
        """Return the error to raise for one from the database."""
        ...

    def clean(self) -> bool:
        """Leave no copy of deleted text; return whether that is done."""
        ...


Job = Callable[[Connection], Result]
"""Part of a transaction. It may be run again after a commit whose outcome is not known, so a second
run must change nothing."""
