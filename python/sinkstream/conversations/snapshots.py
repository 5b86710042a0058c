"""Files of sessions that are at the end of a turn. Each also names the turn and its tenant."""

from __future__ import annotations

from sinkstream.conversations.node import Node
from sinkstream.errors import CheckpointError
from sinkstream.host import Host
from sinkstream.sessions import saved
from sinkstream.sessions.thoughts import Thoughts
from sinkstream.sessions.token_session import ConversationState, TokenSession
from sinkstream.streams.worker import wanted


def save_snapshot(session: TokenSession, node: Node, path: str) -> None:
    """Write the session, whose last turn is `node`, to a file that only its owner can read.

    A power cut may leave it damaged. The checksum reveals that, and the turn is then replayed.

    Raises:
        OSError: The file cannot be written there.
    """
    session.save(path, wanted, _labels(node), flush=False)


def load_snapshot(
    host: Host, node: Node, path: str, cache_salt: str, thoughts: Thoughts
) -> TokenSession:
    """Open the session in a file that `save_snapshot` wrote for the same turn.

    Raises:
        CheckpointError: It is missing, damaged, or for a different turn, model or cache type.
        CapacityError: There is no memory for another session.
    """
    native, record = saved.load(path, host, cache_salt=cache_salt)
    found = {name: record.fields.get(name) for name in _labels(node)}
    if found != _labels(node):
        native.close()
        raise CheckpointError(
            f"load_session: {path} must be the snapshot of turn {node.id}, but belongs to another "
            "turn."
        )
    system_tokens = record.state.system_tokens
    return TokenSession(
        native, host, state_at(node), system_tokens=system_tokens, fields=thoughts.fields
    )


def state_at(node: Node) -> ConversationState:
    """Return where the conversation of a session at the end of a turn is."""
    return ConversationState("assistant", reply_is_open=not node.is_form)


def _labels(node: Node) -> dict[str, str | int]:
    return {"node": node.id, "tenant": node.tenant, "hash": node.hash.hex()}
