"""What one tenant caches shortens no request of another, whose usage and times would show it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream.conversations.conversations import Conversations
from sinkstream.conversations.plain_turns import PlainTurns
from sinkstream.conversations.turns import TextRequest, TurnRequest, Turns, engine_salt
from tests.python.conversations.talk import Chat, ask, options, path_ids, user

SYSTEM = {"role": "system", "content": "Speak as the sea does"}
FIRST = [SYSTEM, user("What is wide?")]
OTHER = [SYSTEM, user("What is deep?")]
STRANGERS = [("b", ""), ("b", "x"), ("a", "y"), ("a", ""), ("", "x")]
OWNER = ("a", "x")


def cached(turns: Turns, messages: Any, tenant: str, salt: str, **more: Any) -> int:
    """Return the cached tokens that the reply's usage reports, and those of the engine."""
    turn = turns.begin(
        TurnRequest(
            tenant=tenant, cache_salt=salt, messages=messages, options=options(tokens=2), **more
        )
    )
    of_stream = turn.stream.result().stats.cached_tokens
    turn.end()
    return turn.facts.cached_tokens or of_stream


def resident(conversations: Conversations, node: str) -> None:
    """Leave the conversation in memory."""


def loaded(conversations: Conversations, node: str) -> None:
    states = conversations._restorer
    for one in states.residency.all():
        states.snapshots.save(one)
        states.residency.discard(one)
    kept = ask(conversations, [user("and")], tenant=OWNER[0], cache_salt=OWNER[1], previous=node)
    assert kept.facts.state == "loaded"


def replayed(conversations: Conversations, node: str) -> None:
    residency = conversations._restorer.residency
    for one in residency.all():
        residency.discard(one)
    kept = ask(conversations, [user("and")], tenant=OWNER[0], cache_salt=OWNER[1], previous=node)
    assert kept.facts.state == "replayed"


@pytest.mark.parametrize("state", [resident, loaded, replayed])
@pytest.mark.parametrize(("tenant", "salt"), [OWNER, *STRANGERS])
def test_a_beginning_is_shared_within_a_tenant_and_a_salt_only(
    conversations: Conversations,
    state: Callable[[Conversations, str], None],
    tenant: str,
    salt: str,
) -> None:
    reply = ask(conversations, FIRST, tenant=OWNER[0], cache_salt=OWNER[1])
    state(conversations, reply.node)
    shared = cached(conversations, OTHER, tenant, salt)
    assert (shared > 0) == ((tenant, salt) == OWNER)


@pytest.mark.parametrize(("tenant", "salt"), [OWNER, *STRANGERS])
def test_completions_share_as_conversations_do(
    model: sinkstream.Model, conversations: Conversations, tenant: str, salt: str
) -> None:
    reply = ask(conversations, FIRST, tenant=OWNER[0], cache_salt=OWNER[1])
    ids = path_ids(conversations, reply.node)[:12]
    plain = PlainTurns(model)
    for turns in (conversations, plain):
        turn = turns.begin_text(TextRequest(ids, options(tokens=2), engine_salt(tenant, salt)))
        stats = turn.stream.result().stats
        turn.end()
        assert stats.cached_tokens == (11 if (tenant, salt) == OWNER else 0)
    is_owner = (tenant, salt) == OWNER
    assert (cached(plain, OTHER, tenant, salt) > 0) == is_owner
    given = [*FIRST, {"role": "assistant", "content": "It is"}]
    assert (cached(plain, given, tenant, salt, continue_final=True) > 0) == is_owner


def test_a_session_that_was_opened_to_be_saved_is_shared_with_none(
    conversations: Conversations, tmp_path: Path
) -> None:
    reply = ask(conversations, FIRST, tenant=OWNER[0], cache_salt=OWNER[1])
    residency = conversations._restorer.residency
    for one in residency.all():
        residency.discard(one)
    conversations.save(OWNER[0], reply.node, tmp_path / "saved")
    assert residency.all()  # the session is still there
    for tenant, salt in [OWNER, *STRANGERS]:
        assert cached(conversations, OTHER, tenant, salt, store=False) == 0


def test_a_long_salt_and_one_that_is_not_unicode_are_salts(conversations: Conversations) -> None:
    for salt in ("s" * 1_000_000, "\ud800", "\0"):
        chat = Chat(conversations)
        chat.say("the sea", tenant="a", cache_salt=salt)
        assert cached(conversations, [user("the sea is")], "a", salt) > 0
