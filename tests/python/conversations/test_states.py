"""Conversations of models with layers that keep a state: in memory, in a file, as ids, undone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import sinkstream
from sinkstream.conversations.conversations import Conversations
from tests.data.family_models import save_family
from tests.data.tiny_tokenizer import TinyTokenizer
from tests.python.conversations.talk import SINKS, WINDOW, Chat, alone, forget, path_ids
from tests.python.conversations.test_restore import (  # with the model below
    test_a_reply_is_undone_while_nothing_has_left_the_window as test_a_reply_is_undone,
)
from tests.python.conversations.test_restore import (
    test_a_turn_before_a_resident_one_is_forked_from as test_an_older_turn_is_forked_from,
)
from tests.python.conversations.test_restore import (
    test_resident_loaded_replayed_and_fresh_are_the_same_bits as test_all_ways_are_the_same_bits,
)

__all__ = [
    "test_a_reply_is_undone",
    "test_all_ways_are_the_same_bits",
    "test_an_older_turn_is_forked_from",
]


@pytest.fixture(scope="module", params=["lfm2"])
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[sinkstream.Model]:
    folder = tmp_path_factory.mktemp(request.param)
    save_family(request.param, folder)
    TinyTokenizer("smollm").write_folder(folder)
    with sinkstream.load(folder, sinks=SINKS, window=WINDOW, threads=1, max_sequences=4) as loaded:
        yield loaded


def test_a_reply_is_regenerated_far_past_the_window(
    model: sinkstream.Model, conversations: Conversations
) -> None:
    chat = Chat(conversations)
    for i in range(6):
        chat.say(f"Message {i}", seed=i)
    first = chat.say("Last", seed=50)
    again = chat.branch(chat.messages[:-2]).say("Last", seed=50)
    assert again.bits == first.bits == alone(model, path_ids(conversations, first.node)[:-8], 50)


def test_a_loaded_conversation_is_edited(
    model: sinkstream.Model, conversations: Conversations
) -> None:
    chat = Chat(conversations)
    for i in range(2):
        chat.say(f"{i}", seed=i, tokens=3)
    forget(conversations, snapshots=True)
    on = chat.branch(chat.messages).say("On", seed=7)
    edited = chat.branch(chat.messages[:-2]).say("Other", seed=8)
    for reply, seed in ((on, 7), (edited, 8)):
        assert reply.bits == alone(model, path_ids(conversations, reply.node)[:-8], seed)
