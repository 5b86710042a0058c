"""A session leaving memory while its conversation continues: a turn waits for its snapshot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import sinkstream
from sinkstream.conversations.conversations import Conversations
from tests.python.conversations.stalling import WAIT_S, Late, Stall
from tests.python.conversations.talk import Chat, Reply, alone, open_conversations, path_ids

_SOON_S = 0.5
"""Long enough for a request that does not wait to find nothing."""


def goes_on_while(stall: Stall, leaves: Callable[[], object], chat: Chat) -> Reply:
    """Return the next reply of a chat whose session is just being saved."""
    leaving = Late(leaves)
    assert stall.reached.wait(WAIT_S)
    replies: list[Reply] = []
    asking = Late(lambda: replies.append(chat.say("On", seed=9)))
    asking.wait(_SOON_S)
    stall.goes_on.set()
    assert asking.join() is leaving.join() is None
    return replies[0]


def is_exact(model: sinkstream.Model, conversations: Conversations, reply: Reply) -> bool:
    return reply.bits == alone(model, path_ids(conversations, reply.node)[: -len(reply.ids)], 9)


def test_a_turn_waits_for_the_snapshot_of_its_session(
    model: sinkstream.Model, tmp_path: Path
) -> None:
    conversations = open_conversations(model, tmp_path, seats=2, replay_tokens=0)
    chat, other, third = (Chat(conversations) for _ in range(3))
    for i in range(2):
        chat.say(f"{i}", seed=i)
        other.say(f"Other {i}", seed=i)  # two turns: the least recently used gives up its seat
    stall = Stall(conversations, "snapshot")
    reply = goes_on_while(stall, lambda: third.say("Hello"), chat)
    assert (reply.facts.state, reply.facts.replayed_tokens) == ("loaded", 0)
    assert is_exact(model, conversations, reply)


def test_a_conversation_is_deleted_while_its_session_is_leaving(
    model: sinkstream.Model, tmp_path: Path
) -> None:
    conversations = open_conversations(model, tmp_path, replay_tokens=0)
    chat = Chat(conversations)
    session = chat.say("Hello").facts.session
    stall = Stall(conversations, "snapshot")
    leaving = Late(conversations._restorer.residency.park_all)
    assert stall.reached.wait(WAIT_S)
    deleting = Late(lambda: conversations.delete("", session))
    deleting.wait(_SOON_S)
    stall.goes_on.set()
    assert deleting.join() is leaving.join() is None
    assert conversations._store.conversations("") == []
    assert list(conversations._store.oldest_snapshots()) == []
