"""A session can begin with a conversation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream import InvalidArgument
from tests.python.waiting import wait_until_idle

SYSTEM = {"role": "system", "content": "You are brief."}
TURN = [
    {"role": "user", "content": "Name a river."},
    {"role": "assistant", "content": "The Danube."},
]
NEXT = "Another one."


@pytest.fixture(scope="module")
def model(smollm2: Path) -> Iterator[sinkstream.Model]:
    with sinkstream.load(smollm2, window=512, max_sequences=3) as loaded:
        yield loaded


def reply(stream: sinkstream.Stream) -> list[int]:
    return stream.result().token_ids


@pytest.mark.parametrize("history", [TURN, [SYSTEM, *TURN], [SYSTEM], TURN * 3])
def test_a_turn_after_a_history_is_that_of_the_whole_conversation(
    model: sinkstream.Model, history: list[dict[str, Any]]
) -> None:
    options: dict[str, Any] = {"max_tokens": 6, "temperature": 0}
    whole = [*history, {"role": "user", "content": NEXT}]
    with model.session(messages=history) as session:
        assert reply(session.stream(NEXT, **options)) == reply(model.stream(whole, **options))
        assert session.stats.turns == 1


def test_a_history_equals_the_turns_that_it_consists_of(model: sinkstream.Model) -> None:
    with model.session("You are brief.") as session:
        for message in TURN:
            session.append(message["content"], message["role"])
        expected = session.token_ids
    with model.session("You are brief.", messages=TURN) as session:
        assert session.token_ids == expected
    with model.session(messages=[SYSTEM, *TURN], sinks="system") as session:
        assert session.token_ids == expected
        with model.session("You are brief.", sinks="system") as short:
            assert session.sinks == short.sinks
    with model.session(messages=[]) as session, model.session() as empty:
        assert session.token_ids == empty.token_ids


def test_a_saved_history_continues(model: sinkstream.Model, tmp_path: Path) -> None:
    with model.session(messages=TURN) as session:
        session.save(tmp_path / "talk.session")
        expected = reply(session.stream(NEXT, max_tokens=4, temperature=0))
    with model.load_session(tmp_path / "talk.session") as session:
        assert reply(session.stream(NEXT, max_tokens=4, temperature=0)) == expected


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"messages": [SYSTEM], "system": "x"}, InvalidArgument, "`system` must be None if"),
        ({"messages": [{"role": "user"}]}, InvalidArgument, "message 0 of `messages` must have"),
        ({"messages": "x"}, TypeError, "`messages` must be a list of messages, but is of type str"),
        ({"messages": ["x"]}, TypeError, "message 0 of `messages` must be a mapping"),
    ],
)
def test_a_malformed_history_is_refused(
    model: sinkstream.Model, arguments: Any, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=f"^session: {sentence}"):
        model.session(**arguments)
    wait_until_idle(model)
