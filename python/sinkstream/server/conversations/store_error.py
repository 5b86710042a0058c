"""The one error of a store, and its sentences."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sinkstream.errors import SinkstreamError


class StoreError(SinkstreamError, RuntimeError):
    """The store cannot be opened, read or written; the message says why."""

    code = "store"


def store_error(path: Path, error: sqlite3.Error | OSError) -> StoreError:
    """Return the error to raise for one of SQLite or of the file system."""
    reason = str(error)
    if isinstance(error, OSError):
        return StoreError(f"store: {path} must be a writable folder, but is not: {reason}.")
    if "readonly" in reason or "unable to open" in reason:
        return StoreError(f"store: {path} must be writable, but is not ({reason}).")
    if "full" in reason:
        return StoreError(
            f"store: {path} must be on a disk with free space, but the disk is full. What was "
            "committed before is complete."
        )
    if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
        return StoreError(
            f"store: {path} was written wrongly: {reason}. This is a bug in sinkstream; please "
            "report it."
        )
    if isinstance(error, sqlite3.OperationalError):
        return StoreError(f"store: {path} cannot be used: {reason}.")
    return StoreError(
        f"store: {path} must be a store of sinkstream, but SQLite reports: {reason}. Move it away, "
        "and the server begins a new one."
    )
