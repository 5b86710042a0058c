"""Sessions, used in any order, behave like plain lists of ids, and no page is lost."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
    run_state_machine_as_test,
)

import sinkstream
from sinkstream import CapacityError, InvalidArgument
from tests.python.lanes import examples

SINKS, WINDOW = 4, 30
CAPACITY = SINKS + WINDOW
Given = TypeVar("Given")
REPLY: dict[str, Any] = {"temperature": 1.0, "ignore_eos": True}

texts = st.lists(st.integers(3, 289), min_size=1, max_size=2 * CAPACITY)
lengths = st.integers(1, 12)
seeds = st.integers(0, 3)


@dataclass(eq=False)
class Known:
    """A session and all its ids, including the last one of a reply."""

    session: sinkstream.Session
    history: list[int] = field(default_factory=list)


def make_machine(model: sinkstream.Model, folder: Path) -> type[RuleBasedStateMachine]:
    class Sessions(RuleBasedStateMachine):
        known = Bundle("known")

        def __init__(self) -> None:
            super().__init__()
            self.open: list[Known] = []
            self.files = 0

        def with_room(self, use: Callable[[], Given]) -> Given:
            """Call `use`, closing the oldest sessions until it has the memory it needs."""
            while True:
                try:
                    return use()
                except CapacityError:
                    if not self.open:
                        raise
                    self.open.pop(0).session.close()

        def add(self, make: Callable[[], sinkstream.Session], history: list[int]) -> Known:
            one = Known(self.with_room(make), list(history))
            self.open.append(one)
            return one

        def alone(self, ids: list[int], tokens: int, seed: int) -> list[int]:
            """Return the reply of one long request; it may share a prefix with a session."""
            options = {"max_tokens": tokens, "seed": seed, **REPLY}
            return self.with_room(lambda: model.stream(ids, **options).result().token_ids)

        @rule(target=known)
        def create(self) -> Known:
            one = self.add(model.session, [])
            one.history = one.session.token_ids
            return one

        @rule(target=known, one=known)
        def fork(self, one: Known) -> Known | None:
            if one not in self.open:
                return one
            return self.add(one.session.fork, one.history) if len(self.open) < 4 else one

        @rule(target=known, one=known)
        def save_and_load(self, one: Known) -> Known:
            if one not in self.open or len(self.open) >= 4:
                return one
            self.files += 1
            path = folder / f"{id(self)}-{self.files}"
            one.session.save(path)
            loaded = self.add(lambda: model.load_session(path), one.history)
            path.unlink()
            return loaded

        @rule(one=known, text=texts)
        def append(self, one: Known, text: list[int]) -> None:
            if one in self.open:
                one.session.append(text)
                one.history += text

        @rule(one=known, text=texts, tokens=lengths, seed=seeds)
        def reply(self, one: Known, text: list[int], tokens: int, seed: int) -> None:
            if one not in self.open:
                return
            got = one.session.stream(text, max_tokens=tokens, seed=seed, **REPLY).result()
            expected = self.alone(one.history + text, tokens, seed)
            assert got.token_ids == expected
            one.history += text + got.token_ids

        @rule(one=known, text=texts, tokens=lengths)
        def leave(self, one: Known, text: list[int], tokens: int) -> None:
            if one not in self.open:
                return
            for _ in one.session.stream(text, max_tokens=tokens, **REPLY).events():
                break
            one.session.append([7])  # the turn has ended by now; its reply is in the ids
            live = one.session.token_ids
            if one.session.stats.evicted_tokens == 0:
                assert live[: len(one.history)] == one.history
                one.history = live
            else:  # tokens that have left the window no longer matter
                one.history = live[:SINKS] + [0] * (2 * CAPACITY) + live[SINKS:]
                one.session.close()
                self.open.remove(one)

        @rule(one=known, text=texts, tokens=lengths)
        def drop(self, one: Known, text: list[int], tokens: int) -> None:
            if one not in self.open:
                return
            stream = one.session.stream(text, max_tokens=tokens, **REPLY)
            stream.result()
            try:
                stream.cancel(keep="drop")
            except CapacityError:  # a page of shared sinks would be copied, and none is free
                one.history += text + stream.result().token_ids

        @rule(one=known)
        def undo(self, one: Known) -> None:
            if one not in self.open:
                return
            before = one.session._tokens.length
            try:
                one.session.undo()
            except (CapacityError, InvalidArgument):
                return
            del one.history[len(one.history) - before + one.session._tokens.length :]

        @rule(one=consumes(known))
        def close(self, one: Known) -> None:
            one.session.close()
            if one in self.open:
                self.open.remove(one)

        @invariant()
        def every_session_has_its_own_tokens(self) -> None:
            for one in self.open:
                live = one.session.token_ids
                expected = one.history
                if len(expected) > len(live):
                    assert len(live) >= CAPACITY
                    expected = expected[:SINKS] + expected[SINKS - len(live) :]
                assert live == expected

        def teardown(self) -> None:
            for one in self.open:
                one.session.close()
            with model.session():  # waits for the step that releases their pages
                pass
            with model.session():
                pass
            stats = model.stats()
            assert stats["running"] == stats["waiting"] == stats["parked"] == 0

    return Sessions


def check(folder: Path, options: settings, steps: int) -> None:
    with (
        sinkstream.load(folder, sinks=SINKS, window=WINDOW, threads=1, max_sequences=4) as model,
        tempfile.TemporaryDirectory() as files,
    ):
        run_state_machine_as_test(  # type: ignore[no-untyped-call]  # hypothesis has no types here
            make_machine(model, Path(files)),
            settings=settings(
                options,
                stateful_step_count=steps,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )


def test_any_use_of_sessions_gives_what_plain_lists_give(
    tiny_folder: Callable[[str], Path],
) -> None:
    check(tiny_folder("llama"), examples(40), steps=40)


@pytest.mark.slow
def test_any_long_use_of_sessions_gives_what_plain_lists_give(
    tiny_folder: Callable[[str], Path],
) -> None:
    check(tiny_folder("llama"), settings(max_examples=600), steps=100)
