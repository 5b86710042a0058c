"""Choices of one request continue one turn: each reads only what is new, with the same bits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import sinkstream
from sinkstream.conversations.conversations import Conversations
from tests.python.conversations.talk import (
    Chat,
    Reply,
    alone,
    ask,
    open_conversations,
    path_ids,
    states,
    user,
)


def choices(conversations: Conversations, chat: Chat, count: int, **request: bool) -> list[Reply]:
    """Ask for several replies to one message at the same time."""
    messages = [*chat.messages, user("And now?")]

    def one(index: int) -> Reply:
        return ask(
            conversations, messages, seed=50 + index, tokens=6, has_siblings=count > 1, **request
        )

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


@pytest.mark.parametrize("others", [0, 2])
def test_choices_read_only_what_is_new(
    model: sinkstream.Model, conversations: Conversations, others: int
) -> None:
    chat = Chat(conversations)
    for i in range(12):
        chat.say(f"Message {i}", seed=i)
    for i in range(others):  # idle conversations of others give up their seats
        ask(conversations, [user(f"Other {i}")])
    chat.say("The last before", seed=12)
    before = model.stats()["prompt_tokens"]
    replies = choices(conversations, chat, 3)
    read = model.stats()["prompt_tokens"] - before
    assert states(replies) == ["resident"] * 3
    facts = replies[0].facts
    # A reply's last token is read with the message after it.
    assert read == 3 * (facts.prompt_tokens - facts.cached_tokens + 1)
    for index, reply in enumerate(replies):
        ids = path_ids(conversations, reply.node)[:-6]
        assert reply.bits == alone(model, ids, 50 + index, 6)


def test_choices_beyond_the_seats_are_the_same_bits(
    model: sinkstream.Model, tmp_path: Path
) -> None:
    conversations = open_conversations(model, tmp_path, seats=2)
    chat = Chat(conversations)
    for i in range(12):
        chat.say(f"Message {i}", seed=i)
    replies = choices(conversations, chat, 2)
    replies += choices(conversations, chat, 1)
    for seed, reply in zip((50, 51, 50), replies, strict=True):
        ids = path_ids(conversations, reply.node)[:-6]
        assert reply.bits == alone(model, ids, seed, 6)
    assert set(states(replies[:2])) == {"resident"}


def test_the_conversation_goes_on_from_each_choice(conversations: Conversations) -> None:
    chat = Chat(conversations)
    for i in range(3):
        chat.say(f"Message {i}", seed=i)
    replies = choices(conversations, chat, 2)
    for reply in replies:
        messages = [*chat.messages, user("And now?"), {"role": "assistant", "content": reply.text}]
        assert chat.branch(messages).say("Go on").facts.state == "resident"
