"""What goes wrong with a conversation: its store, its state, or the reading of its messages."""

from __future__ import annotations

from pathlib import Path

from sinkstream.errors import SinkstreamError


class StoreError(SinkstreamError, RuntimeError):
    """The store cannot be opened, read or written; the message says why."""

    code = "store"


class SessionMoved(SinkstreamError, RuntimeError):
    """Another process has taken the conversation; nothing was written."""

    code = "session_moved"

    def __init__(self, session: str) -> None:
        super().__init__(
            f"stream: the conversation {session} moved to another replica before this turn "
            "was complete. Send the request again."
        )


class StateLost(SinkstreamError, RuntimeError):
    """A conversation's state would take more tokens to rebuild than are allowed."""

    code = "state_lost"


class ReadingEnded(SinkstreamError, RuntimeError):
    """A request has ended while its conversation was being read."""


class ReadingCancelled(ReadingEnded):
    """Its client has left, or the server is shutting down."""

    code = "cancelled"


class ReadingTimedOut(ReadingEnded):
    """Its time has passed. What has been read stays."""

    code = "timeout"

    def __init__(self, timeout_s: float) -> None:
        super().__init__(
            f"stream: the conversation must be read within {timeout_s:g} s (`timeout_s`), but was "
            "not. Send the request again: reading continues where it stopped."
        )


def closed_error() -> StoreError:
    """Return the error to raise when a store is used after it was closed."""
    return StoreError("store: the store is closed.")


def lost(what: str) -> str:
    """Return what to say about a database that was deleted or replaced while it was used."""
    return (
        f"store: {what} must stay where it is while a server uses it, but was deleted or replaced. "
        "Put it back, or restart the server, which then uses what is there."
    )


def folder_error(path: Path, error: OSError) -> StoreError:
    """Return the error to raise for one from the file system."""
    return StoreError(f"store: {path} must be a writable folder, but is not: {error}.")


def full_error(what: str) -> StoreError:
    """Return the error to raise when there is no space."""
    return StoreError(
        f"store: {what} must be on a disk with free space, but the disk is full. What was "
        "committed before is complete."
    )


def other_version(what: str, version: object, oldest: int, newest: int) -> StoreError:
    """Return the error to raise for tables of a version that cannot be read."""
    return StoreError(
        f"store: {what} must have a version from {oldest} to {newest}, which this version of "
        f"sinkstream reads, but has version {version}. Update sinkstream, choose another `store`, "
        "or move this one away."
    )


def used_by_others(what: str, version: int, newest: int) -> StoreError:
    """Return the error to raise for a store that cannot be migrated while others use it."""
    return StoreError(
        f"store: {what} must be used by no other server while it is migrated from version "
        f"{version} to {newest}, but another one is using it. Stop all servers of this store, and "
        "start one of this version before the others."
    )


def other_columns(what: str, table: str, expected: list[str], found: list[str]) -> StoreError:
    """Return the error to raise for a table with different columns."""
    return StoreError(
        f"store: {what} must have a table `{table}` with the columns {', '.join(expected)}, but "
        f"has {', '.join(found) or 'none'}. It is damaged. If you move it away, the server "
        "creates a new one."
    )


def other_model(what: str, expected: str, found: str | None) -> StoreError:
    """Return the error to raise for a store that belongs to a different model."""
    return StoreError(
        f"store: {what} must belong to this model and its settings, {expected}, but belongs to "
        f"{found}. Choose another `store`."
    )


def wrongly_written(what: str, reason: str) -> StoreError:
    """Return the error to raise for a statement that the database refuses."""
    return StoreError(
        f"store: {what} was written incorrectly: {reason}. This is a bug in sinkstream; please "
        "report it."
    )
