"""The one error of a store."""

from __future__ import annotations

from pathlib import Path

from sinkstream.errors import SinkstreamError


class StoreError(SinkstreamError, RuntimeError):
    """The store cannot be opened, read or written; the message says why."""

    code = "store"


def closed_error() -> StoreError:
    """Return the error to raise when a store is used after it was closed."""
    return StoreError("store: the store is closed.")


def folder_error(path: Path, error: OSError) -> StoreError:
    """Return the error to raise for one from the file system."""
    return StoreError(f"store: {path} must be a writable folder, but is not: {error}.")


def full_error(what: str) -> StoreError:
    """Return the error to raise when there is no space."""
    return StoreError(
        f"store: {what} must be on a disk with free space, but the disk is full. What was "
        "committed before is complete."
    )


def other_version(what: str, version: object, expected: int) -> StoreError:
    """Return the error to raise for tables of a different version."""
    return StoreError(
        f"store: {what} must have version {expected}, the only one that this version of "
        f"sinkstream reads, but has version {version}. Choose another `store`, or move this one "
        "away."
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
