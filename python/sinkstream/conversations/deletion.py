"""Deletes turns, and closes those that a dead process left, in the caller's transaction.

A conversation's `bytes` are what its turns, their parts and their settled forms take. Code that
writes one of these adds its bytes, and code that deletes one subtracts them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from sinkstream.conversations.canonical import ReplyHash
from sinkstream.conversations.database import Connection, in_marks
from sinkstream.conversations.node import is_settled_id, settled_id

TURN_BYTES = 512
"""What a turn takes in addition to its texts and tokens: ids, hashes, and its places in indexes."""
_TEXTS = ("session_key", "read_ids", "messages", "given", "record", "note")


def add_bytes(connection: Connection, conversation: str, count: int) -> None:
    """Note that a conversation takes `count` more bytes."""
    connection.execute(
        "UPDATE conversations SET bytes = bytes + ? WHERE id = ?", [count, conversation]
    )


def bytes_of(connection: Connection, ids: Sequence[str]) -> int:
    """Return the bytes that turns take."""
    count = 0
    size = connection.size
    node = " + ".join(f"COALESCE({size.format(one)}, 0)" for one in _TEXTS)
    part = f"{size.format('ids')} + {size.format('text')}"
    for table, key, row, names in (
        ("nodes", "id", f"{TURN_BYTES} + {node}", ids),
        ("parts", "node", part, ids),
        ("forms", "id", size.format("ids"), list(map(settled_id, ids))),
    ):
        for marks, some in in_marks(names):
            query = f"SELECT COALESCE(SUM({row}), 0) FROM {table} WHERE {key} IN ({marks})"
            count += int(connection.execute(query, some).fetchone()[0])
    return count


def exists(connection: Connection, node_id: str) -> bool:
    """Return whether a turn, complete or not, or a settled form exists."""
    table = "forms" if is_settled_id(node_id) else "nodes"
    found = connection.execute(f"SELECT 1 FROM {table} WHERE id = ?", [node_id])
    return found.fetchone() is not None


def delete_snapshots(connection: Connection, nodes: Sequence[str]) -> None:
    """Delete the snapshots of turns, and note that their files are to be deleted."""
    for marks, some in in_marks(nodes):
        connection.execute(
            f"INSERT INTO loose_files SELECT file, {connection.age}, 1 FROM snapshots "
            f"WHERE node IN ({marks}) ON CONFLICT DO NOTHING",
            some,
        )
        connection.execute(f"DELETE FROM snapshots WHERE node IN ({marks})", some)


def with_forms(ids: Sequence[str]) -> list[str]:
    """Return the ids of turns and of their settled forms."""
    return [*ids, *map(settled_id, ids)]


def delete_nodes(connection: Connection, conversation: str, ids: Sequence[str]) -> None:
    """Delete turns of a conversation, and the conversation if none is left."""
    delete_snapshots(connection, with_forms(ids))
    add_bytes(connection, conversation, -bytes_of(connection, ids))
    for marks, some in in_marks(ids):
        for table, key in (("parts", "node"), ("nodes", "id")):
            connection.execute(f"DELETE FROM {table} WHERE {key} IN ({marks})", some)
    for marks, some in in_marks(list(map(settled_id, ids))):
        connection.execute(f"DELETE FROM forms WHERE id IN ({marks})", some)
    left = connection.execute("SELECT 1 FROM nodes WHERE conversation = ?", [conversation])
    if left.fetchone() is None:
        connection.execute("DELETE FROM conversations WHERE id = ?", [conversation])
        connection.execute("DELETE FROM owners WHERE session = ?", [conversation])


def remove_promise(connection: Connection, name: str) -> None:
    """Remove the promise of a turn, which is complete, or is to be deleted."""
    connection.execute("DELETE FROM promises WHERE id = ?", [name])


def close_unfinished(connection: Connection, conversation: str | None = None) -> None:
    """Close running turns whose process has died; delete those that had generated nothing.

    Args:
        connection: Inside a transaction.
        conversation: The conversation with the turns; None for all.
    """
    query = "SELECT id, conversation, before, given, tokens FROM nodes WHERE hash IS NULL"
    rows = (
        connection.execute(query).fetchall()
        if conversation is None
        else connection.execute(f"{query} AND conversation = ?", [conversation]).fetchall()
    )
    for node_id, of_turn, before, given, tokens in rows:
        reply = ReplyHash(before)
        reply.add(given.decode())
        ids: array[int] = array("i")
        parts = connection.execute(
            "SELECT number, ids, text FROM parts WHERE node = ? ORDER BY number", [node_id]
        ).fetchall()
        for expected, (number, part, text) in enumerate(parts):
            if number != expected:  # the write of one failed: the reply ends before it
                gap = (node_id, expected)
                connection.execute("DELETE FROM parts WHERE node = ? AND number > ?", gap)
                lost = sum(len(ids) + len(text) for _, ids, text in parts[expected:])
                add_bytes(connection, of_turn, -lost)
                break
            ids.frombytes(part)
            reply.add(text.decode())
        if not ids:
            delete_nodes(connection, of_turn, [node_id])
            continue
        remove_promise(connection, node_id)
        connection.execute(
            "UPDATE nodes SET hash = ?, tokens = ?, last_id = ?, finish_reason = 'interrupted' "
            "WHERE id = ?",
            (reply.digest(), tokens + len(ids), ids[-1], node_id),
        )
