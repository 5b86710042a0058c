"""A session leaving memory while another replica continues its conversation."""

from __future__ import annotations

import sinkstream
from tests.python.cluster.shared_stores import SharedLocation, fence_of, replica
from tests.python.conversations.stalling import Stall
from tests.python.conversations.talk import Chat
from tests.python.conversations.test_leaving import goes_on_while, is_exact


def test_a_conversation_is_released_after_the_snapshot_of_its_session(
    model: sinkstream.Model, location: SharedLocation
) -> None:
    one, two = (replica(model, location, name, replay_tokens=0) for name in ("one", "two"))
    fence_of(two).ask = lambda _, session: fence_of(one).release(session)
    chat = Chat(one)
    chat.say("Hello", seed=1)
    chat.conversations = two
    stall = Stall(one, "snapshot")
    reply = goes_on_while(stall, fence_of(one).park_all, chat)
    assert (reply.facts.state, reply.facts.replayed_tokens) == ("loaded", 0)
    assert is_exact(model, two, reply)
