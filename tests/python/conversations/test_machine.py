"""Conversations, used in any order, behave like lists of messages and one long request each."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, rule, run_state_machine_as_test

import sinkstream
from sinkstream.conversations.conversations import Conversations
from sinkstream.conversations.turns import NotFound, TurnRequest
from tests.python.conversations.talk import (
    OPENED,
    Messages,
    Reply,
    alone,
    ask,
    assistant,
    lose_snapshot,
    open_conversations,
    options,
    path_ids,
    user,
)

texts = st.sampled_from(["Hi", "the sinking sea", "x" * 70, "", " \n"])
seeds = st.integers(0, 2)
lengths = st.integers(1, 20)


@dataclass(eq=False)
class Known:
    """A turn that a client has seen: the messages up to its reply's end."""

    messages: Messages
    node: str


def make_machine(model: sinkstream.Model, folder: Path) -> type[RuleBasedStateMachine]:
    numbers = itertools.count()

    class Machine(RuleBasedStateMachine):
        known = Bundle("known")

        def __init__(self) -> None:
            super().__init__()
            self.store = folder / f"{next(numbers)}"
            self.conversations = self.opened()
            self.ids: dict[str, list[int]] = {}  # all of every turn that must be there

        def opened(self) -> Conversations:
            return open_conversations(
                model, self.store, ttl_s=None, snapshot_tokens=40, replay_tokens=30
            )

        def teardown(self) -> None:
            OPENED.remove(self.conversations)
            self.conversations.close()

        def note(self, messages: Messages, reply: Reply, parent: str | None) -> Known:
            """Compare a reply with a fresh read of all ids, and note the turn."""
            facts, count = reply.facts, len(reply.ids)
            ids = path_ids(self.conversations, reply.node)
            assert facts.prompt_tokens == len(ids) - count
            assert ids[len(ids) - count :] == reply.ids
            if parent is not None:
                before = self.ids[parent]
                assert ids[: len(before)] == before
            self.ids[reply.node] = ids
            self.expected = ids[: len(ids) - count]
            return Known([*messages, assistant(reply.text)], reply.node)

        def ask(
            self, messages: Messages, seed: int, tokens: int, parent: str | None, **more: Any
        ) -> Known:
            reply = ask(self.conversations, messages, seed=seed, tokens=tokens, **more)
            known = self.note(messages if "previous" not in more else [], reply, parent)
            assert reply.bits == alone(model, self.expected, seed, tokens)
            return known

        def is_there(self, one: Known) -> bool:
            return one.node in self.ids

        @rule(target=known, text=texts, seed=seeds, tokens=lengths)
        def create(self, text: str, seed: int, tokens: int) -> Known:
            return self.ask([user(text)], seed, tokens, None)

        @rule(target=known, one=known, text=texts, seed=seeds, tokens=lengths)
        def resend(self, one: Known, text: str, seed: int, tokens: int) -> Known:
            messages = [*one.messages, user(text)]
            stored = self.is_there(one)
            known = self.ask(messages, seed, tokens, None)
            node = self.conversations._store.node(known.node)
            assert node is not None
            if stored:  # it, or a turn with equal messages
                assert node.parent is not None
            return known

        @rule(target=known, one=known, text=texts, seed=seeds, tokens=lengths)
        def name(self, one: Known, text: str, seed: int, tokens: int) -> Known:
            said = [user(text)]
            if not self.is_there(one):
                with pytest.raises(NotFound):
                    ask(self.conversations, said, previous=one.node)
                return one
            reply = ask(self.conversations, said, seed=seed, tokens=tokens, previous=one.node)
            known = self.note([*one.messages, *said], reply, one.node)
            assert reply.bits == alone(model, self.expected, seed, tokens)
            return known

        @rule(target=known, one=known, seed=seeds, tokens=lengths)
        def regenerate(self, one: Known, seed: int, tokens: int) -> Known:
            return self.ask(one.messages[:-1], seed, tokens, None)

        @rule(target=known, one=known, at=st.integers(0, 5), text=texts, seed=seeds)
        def edit(self, one: Known, at: int, text: str, seed: int) -> Known:
            kept = one.messages[: 2 * (at % (len(one.messages) // 2))]
            return self.ask([*kept, user(text + "!")], seed, 4, None)

        @rule(target=known, one=known, text=texts, seed=seeds, shown=st.integers(0, 9))
        def cut_reply(self, one: Known, text: str, seed: int, shown: int) -> Known:
            """The client shows only a part of the reply, and sends that back."""
            cut = assistant(one.messages[-1]["content"][:shown])
            return self.ask([*one.messages[:-1], cut, user(text)], seed, 4, None)

        @rule(target=known, one=known, text=texts, seed=seeds, closes=st.booleans())
        def leave(self, one: Known, text: str, seed: int, closes: bool) -> Known:
            """The client goes away while the reply is generated."""
            if not self.is_there(one):
                return one
            said = [user(text)]
            turn = self.conversations.begin(TurnRequest("", said, options(seed, 5000), one.node))
            seen = next(turn.stream)
            turn.stream.close() if closes else turn.stream.cancel()
            if not closes:
                seen += "".join(turn.stream)
            end = turn.end()
            assert end.finish_reason == "cancelled"
            ids = path_ids(self.conversations, end.node)
            assert ids[: len(self.ids[one.node])] == self.ids[one.node]
            assert len(ids) == turn.facts.prompt_tokens + end.stats.generated_tokens
            self.ids[end.node] = ids
            return Known([*one.messages, *said, assistant(seen)], end.node)

        @rule(one=known, text=texts, seed=seeds)
        def ask_aside(self, one: Known, text: str, seed: int) -> None:
            before = len(self.conversations._store.conversations(""))
            reply = ask(self.conversations, [*one.messages, user(text)], seed=seed, store=False)
            assert self.conversations._store.node(reply.node) is None
            assert len(self.conversations._store.conversations("")) == before

        @rule()
        def upkeep(self) -> None:
            self.conversations._maintenance.run()

        @rule()
        def park(self) -> None:
            while self.conversations._restorer.residency.park_idle():
                pass

        @rule(count=st.integers(1, 3))
        def drop_snapshots(self, count: int) -> None:
            oldest = list(self.conversations._store.oldest_snapshots())
            for node, _ in oldest[:count]:
                lose_snapshot(self.conversations, node)

        @rule()
        def reopen(self) -> None:
            self.teardown()
            self.conversations = self.opened()

        @rule(one=known)
        def delete(self, one: Known) -> None:
            if not self.is_there(one):
                return
            self.conversations.delete("", one.node)
            assert self.conversations._store.node(one.node) is None
            self.ids = {
                name: ids for name, ids in self.ids.items()
                if self.conversations._store.node(name) is not None
            }  # fmt: skip

    return Machine


def test_any_order_of_use_is_exact(model: sinkstream.Model, tmp_path: Path) -> None:
    run_state_machine_as_test(
        make_machine(model, tmp_path),
        settings=settings(
            max_examples=8,
            stateful_step_count=20,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.slow
def test_any_order_of_use_is_exact_for_long(model: sinkstream.Model, tmp_path: Path) -> None:
    run_state_machine_as_test(
        make_machine(model, tmp_path),
        settings=settings(
            max_examples=150,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
