"""What every `Turns` must do, whether it keeps conversations or not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream.conversations.conversations import Conversations
from sinkstream.conversations.open_store import Settings
from sinkstream.conversations.plain_turns import PlainTurns
from sinkstream.conversations.turns import NotFound, TextRequest, TurnRequest, Turns

OPTIONS: Any = {"max_tokens": 6, "ignore_eos": True, "temperature": 1.0, "seed": 5}
HELLO = [{"role": "user", "content": "the sea"}]


@pytest.fixture(scope="module")
def model(tiny_folder: Callable[[str], Path]) -> Iterator[sinkstream.Model]:
    with sinkstream.load(tiny_folder("llama"), window=60, max_sequences=3, threads=1) as found:
        yield found


@pytest.fixture(params=["plain", "kept"])
def turns(
    request: pytest.FixtureRequest, model: sinkstream.Model, tmp_path: Path
) -> Iterator[Turns]:
    kept = request.param == "kept"
    settings = Settings(maintenance_s=3600, seats=2)
    made: Turns = Conversations(model, tmp_path, settings) if kept else PlainTurns(model)
    yield made
    made.close()
    made.close()


def asked(messages: Any = HELLO, **more: Any) -> TurnRequest:
    return TurnRequest(**{"tenant": "", "messages": messages, "options": OPTIONS, **more})


def test_a_reply_equals_the_models(turns: Turns, model: sinkstream.Model) -> None:
    turn = turns.begin(asked())
    result = turn.stream.result()
    end = turn.end()
    expected = model.generate(HELLO, **OPTIONS)
    assert (result.text, result.token_ids) == (expected.text, expected.token_ids)
    assert (end.finish_reason, end.stats.generated_tokens) == ("length", 6)
    assert turn.facts.state == "new"
    assert turn.facts.prompt_tokens == expected.stats.prompt_tokens
    assert turn.facts.session


def test_a_reply_that_is_not_read_to_its_end_ends_as_cancelled(turns: Turns) -> None:
    turn = turns.begin(asked(options={**OPTIONS, "max_tokens": 1 << 40}))
    next(turn.stream)
    turn.stream.close()
    assert turn.end().finish_reason == "cancelled"
    after = turns.begin(asked())  # its place is free again
    after.stream.result()
    assert after.end().finish_reason == "length"


@pytest.mark.parametrize(
    "messages", [[], [{"role": "robot", "content": "a"}], [{"role": "user", "content": 1}]]
)
def test_a_bad_message_is_refused(turns: Turns, messages: Any) -> None:
    with pytest.raises((sinkstream.InvalidArgument, TypeError)):
        turns.begin(asked(messages))


def test_a_bad_option_is_refused_and_costs_no_place(turns: Turns) -> None:
    for _ in range(5):
        with pytest.raises(sinkstream.InvalidArgument, match="`temperature` must"):
            turns.begin(asked(options={**OPTIONS, "temperature": -1.0}))
        with pytest.raises(sinkstream.InvalidArgument, match="`temperature` must"):
            turns.begin_text(TextRequest("the", {**OPTIONS, "temperature": -1.0}))
    turns.begin(asked()).end()


def test_a_name_of_no_turn_is_not_found(turns: Turns) -> None:
    with pytest.raises(NotFound):
        turns.begin(asked(previous="resp_none"))
    with pytest.raises(NotFound):
        turns.delete("", "sess_none")


def test_the_assistants_last_message_is_continued(turns: Turns, model: sinkstream.Model) -> None:
    given = [*HELLO, {"role": "assistant", "content": "It is"}]
    turn = turns.begin(asked(given, continue_final=True))
    text = turn.stream.result().text
    turn.end()
    plain = PlainTurns(model).begin(asked(given, continue_final=True))
    assert text == plain.stream.result().text
    plain.end()
    with pytest.raises(sinkstream.InvalidArgument, match="message"):
        turns.begin(asked(HELLO, continue_final=True))


def test_tokens_are_counted_as_begin_would(turns: Turns) -> None:
    more = [*HELLO, {"role": "assistant", "content": "It is"}, {"role": "user", "content": "wide"}]
    for messages in (HELLO, more):
        counted = turns.prompt_tokens(asked(messages))
        turn = turns.begin(asked(messages))
        assert turn.facts.prompt_tokens == counted
        turn.end()
    with pytest.raises(NotFound):
        turns.prompt_tokens(asked(previous="resp_none"))
    with pytest.raises(sinkstream.InvalidArgument):
        turns.prompt_tokens(asked([{"role": "robot", "content": "a"}]))


def test_only_a_stored_turn_has_its_text_kept(turns: Turns) -> None:
    turn = turns.begin(asked(node="resp_own", record="mine"))
    text = turn.stream.result().text
    end = turn.end()
    turns.note("resp_own", "ended")
    if not end.node:
        with pytest.raises(NotFound):
            turns.text_of("", "resp_own")
        return
    found = turns.text_of("", end.node)
    assert end.node == turn.facts.node == "resp_own"
    assert (found.text, found.record, found.note) == (text, "mine", "ended")
    assert found.messages == [{"content": "the sea", "role": "user"}]
    for tenant, name in (("other", "resp_own"), ("", "resp_none")):
        with pytest.raises(NotFound):
            turns.text_of(tenant, name)


def test_plain_text_and_ids_are_completed(turns: Turns, model: sinkstream.Model) -> None:
    for prompt in ("the sea", [5, 6, 7]):
        for _ in range(4):  # more than there are places
            turn = turns.begin_text(TextRequest(prompt, OPTIONS))
            assert turn.stream.result().text == model.generate(prompt, **OPTIONS).text
            assert turn.end().node == ""
    assert turns.conversations("", 9) == []


def test_conversations_need_no_server_and_no_cluster() -> None:
    """Neither ours nor the packages that these import."""
    code = (
        "import sys, sinkstream.conversations.conversations, sinkstream.conversations.plain_turns\n"
        "others = ('sinkstream.server', 'sinkstream.cluster', 'starlette', 'fastapi', 'uvicorn',\n"
        "          'httpx', 'psycopg', 'obstore')\n"
        "print([name for name in others if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
