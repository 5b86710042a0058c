"""Talks to `Conversations` as a client does, and says what a reply must be."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sinkstream
from sinkstream.conversations.conversations import Conversations
from sinkstream.conversations.database import MOST_ADDED_S
from sinkstream.conversations.open_store import Settings
from sinkstream.conversations.turns import TurnFacts, TurnRequest

SINKS, WINDOW = 4, 60
CAPACITY = SINKS + WINDOW
STILL = 3600.0  # upkeep that tests call themselves

OPENED: list[Conversations] = []
"""By the test that is running."""

Messages = list[dict[str, Any]]


def open_conversations(
    model: sinkstream.Model, store: Path, *, has_saver: bool = False, **settings: Any
) -> Conversations:
    """Open a store, leaving a sequence for the tests' own requests; the test's end closes it.

    No thread saves or parks sessions by itself, unless `has_saver`.
    """
    still = {"maintenance_s": STILL, "saved_early": 0}
    settings = {"seats": model.capacity.max_sequences - 1, **still, **settings}
    opened = Conversations(model, store, Settings(**settings))
    OPENED.append(opened)
    if not has_saver:
        opened._snapshot_thread.close()
    return opened


def wait_until(happened: Callable[[], object]) -> None:
    """Wait for another thread's work."""
    until = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.002)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@dataclass(frozen=True)
class Reply:
    """A reply and what was said about it."""

    text: str
    ids: list[int]
    logprobs: list[float]
    facts: TurnFacts
    node: str

    @property
    def bits(self) -> tuple[list[int], list[float]]:
        """What must be equal, bit for bit."""
        return self.ids, self.logprobs


def options(seed: int = 0, tokens: int = 8, **more: Any) -> Any:
    return {"max_tokens": tokens, "seed": seed, "temperature": 1.0, "ignore_eos": True, **more}


def letters(model: sinkstream.Model) -> dict[int, float]:
    """Allow only letters that no merge joins, so that the tokenizer encodes a reply as it was."""
    tokenizer = model.tokenizer
    assert tokenizer is not None
    allowed = {tokenizer.encode(letter).ids[0] for letter in "xqzjk"}
    return {i: -float("inf") for i in range(model.spec.vocab_size) if i not in allowed}


def ask(
    conversations: Conversations,
    messages: Messages,
    *,
    seed: int = 0,
    tokens: int = 8,
    sampling: dict[str, Any] | None = None,
    **request: Any,
) -> Reply:
    """Send messages, read the whole reply, and end the turn."""
    request.setdefault("tenant", "")
    turn = conversations.begin(
        TurnRequest(messages=messages, options=options(seed, tokens, **(sampling or {})), **request)
    )
    result = turn.stream.result()
    end = turn.end()
    assert end.finish_reason == result.finish_reason
    return Reply(result.text, result.token_ids, result.logprobs, turn.facts, end.node)


def path_ids(conversations: Conversations, node_id: str) -> list[int]:
    """Return all ids of a stored conversation up to a turn's end."""
    store = conversations._store
    ids: list[int] = []
    node = store.node(node_id)
    while node is not None:
        ids = store.ids_of(node.id).tolist() + ids
        node = None if node.parent is None else store.node(node.parent)
    return ids


def alone(
    model: sinkstream.Model, ids: list[int], seed: int, tokens: int = 8, **more: Any
) -> tuple[list[int], list[float]]:
    """Return the reply of one long request that nothing was kept for."""
    result = model.stream(ids, **options(seed, tokens, **more)).result()
    return result.token_ids, result.logprobs


@dataclass
class Chat:
    """A client that sends its whole history with every message."""

    conversations: Conversations
    messages: Messages = field(default_factory=list)

    def say(self, text: str, **request: Any) -> Reply:
        """Send a message with all before it, and note the reply."""
        self.messages = [*self.messages, user(text)]
        reply = ask(self.conversations, self.messages, **request)
        self.messages = [*self.messages, assistant(reply.text)]
        return reply

    def branch(self, messages: Messages) -> Chat:
        """Return a client that continues from other messages."""
        return Chat(self.conversations, messages)


def lose_snapshot(conversations: Conversations, node_id: str) -> None:
    """Lose a snapshot, as with the disk that it was on."""
    store = conversations._store
    store._writer.submit(lambda connection: store.remove_snapshot(connection, node_id)).result()


def forget(conversations: Conversations, *, snapshots: bool) -> None:
    """Close all sessions, after writing their snapshots or losing all that there are."""
    states = conversations._restorer
    for resident in states.residency.all():
        if snapshots and states.snapshots.unsaved(resident) > 0:
            states.snapshots.save(resident)
        states.residency.discard(resident)
    if not snapshots:
        for state_id, _ in list(conversations._store.oldest_snapshots()):
            lose_snapshot(conversations, state_id)


def grow_old(conversations: Conversations, seconds: float) -> None:
    """Let all conversations have been unused for a time."""
    earlier = "UPDATE conversations SET aged = aged - ?"
    store = conversations._store
    store.submit(lambda connection: connection.execute(earlier, [MOST_ADDED_S + seconds])).result()


def states(replies: list[Reply]) -> list[str]:
    return [reply.facts.state for reply in replies]
