"""A session that undid turns is, bit for bit, one that never had them, wherever its window is."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream import CheckpointError, InvalidArgument, SessionBusy
from sinkstream.sessions import history
from tests.python.sessions.records import split

LAYERS = 3


def load(folder: Path, **changes: Any) -> sinkstream.Model:
    options = {"sinks": 4, "window": 60, "threads": 1, "max_sequences": 2, **changes}
    return sinkstream.load(folder, **options)


@pytest.fixture(scope="module")
def model(tiny_folder: Callable[[str], Path]) -> Iterator[sinkstream.Model]:
    with load(tiny_folder("llama")) as loaded:
        yield loaded


def say(session: sinkstream.Session, seed: int) -> tuple[list[int], list[float]]:
    """Have a turn that depends on the seed; some are longer than the window."""
    source = random.Random(seed)
    ids = [source.randrange(3, 130) for _ in range(source.choice((1, 9, 30, 90)))]
    options: dict[str, Any] = {"max_tokens": source.choice((1, 5, 40)), "ignore_eos": True}
    result = session.stream(ids, seed=seed, frequency_penalty=0.5, **options).result()
    return result.token_ids, result.logprobs


def seen(session: sinkstream.Session) -> tuple[list[int], sinkstream.SessionStats]:
    return session.token_ids, replace(session.stats, unread_tokens=0)


@pytest.mark.parametrize(
    ("folder", "sinks", "window", "kv_dtype"),
    [
        ("llama", 4, 60, "float32"),
        ("llama", 0, 40, "float16"),
        ("llama", 17, 47, "bfloat16"),
        ("llama", 70, 30, "int8"),
        ("qwen2-windows", 4, 60, "float16"),
        ("qwen3-all-windows", 4, 60, "int8"),
    ],
)
def test_undone_turns_have_never_been(
    tiny_folder: Callable[[str], Path],
    tmp_path: Path,
    folder: str,
    sinks: int,
    window: int,
    kv_dtype: str,
) -> None:
    with load(tiny_folder(folder), sinks=sinks, window=window, kv_dtype=kv_dtype) as model:
        session, plain = model.session(), model.session()
        source = random.Random(5)
        read_again = 0
        for turn in range(24):
            detours = source.randrange(4)
            for number in range(detours):
                say(session, 1000 + 10 * turn + number)
            for _ in range(detours):
                session.undo()
            assert seen(session) == seen(plain)
            read_again += session.stats.unread_tokens
            if turn % 6 == 5:
                session.save(tmp_path / "talk")
                assert session.stats.unread_tokens == 0
                session.close()
                session = model.load_session(tmp_path / "talk")
            assert say(session, turn) == say(plain, turn), turn
        assert session.stats.evicted_tokens > 5 * window
        assert read_again > 0
        assert read_again <= 24 * (LAYERS * (window - 1) + 1)
        plain.close()
        session.close()


def test_all_turns_are_undone_back_to_the_start(model: sinkstream.Model) -> None:
    with model.session("You are brief.") as session:
        opened = session.messages
        assert opened == [{"role": "system", "content": "You are brief."}]
        start, expected = seen(session), []
        for turn in range(12):
            reply = session.generate("hello there", max_tokens=9, seed=turn)
            removed = [{"role": "user", "content": "hello there"}]
            text = model.tokenizer.decode(reply.token_ids)  # type: ignore[union-attr]
            expected.append([*removed, {"role": "assistant", "content": text}])
            assert session.messages == [*opened, *itertools.chain(*expected)]
        assert session.stats.evicted_tokens > 100
        for turn in reversed(expected):
            assert session.undo() == turn
        assert (seen(session), session.messages) == (start, opened)
        with pytest.raises(InvalidArgument, match="undo: there must be a turn to undo, but there"):
            session.undo()
        with model.session("You are brief.") as fresh:
            for turn in range(3):
                assert say(session, turn) == say(fresh, turn)


def test_a_running_turn_and_an_appended_message_are_undone(model: sinkstream.Model) -> None:
    with model.session() as session, model.session() as plain:
        for one in (session, plain):
            say(one, 3)
            say(one, 4)
        before = seen(session)
        stream = session.stream("hello", ignore_eos=True)
        next(stream)
        question, reply = session.undo()
        assert question == {"role": "user", "content": "hello"}
        assert reply["role"] == "assistant"
        assert stream.result().finish_reason == "cancelled"
        assert seen(session) == before
        session.append("hello " * 40, role="user")
        assert session.undo() == [{"role": "user", "content": "hello " * 40}]
        assert seen(session) == before
        session.stream("hello", max_tokens=90, ignore_eos=True).result()
        session.cancel("drop")
        with pytest.raises(InvalidArgument, match=r"already been undone\. Use `Session\.undo`"):
            session.cancel("drop")
        assert say(session, 5) == say(plain, 5)


def test_what_a_failed_or_cut_turn_left_is_undone(model: sinkstream.Model) -> None:
    with model.session() as session, model.session() as plain:
        for one in (session, plain):
            say(one, 3)
            say(one, 4)
        before = seen(session)
        with pytest.raises(InvalidArgument):
            session.stream("hello", temperature=-1.0)
        with session.stream([5] * 200, timeout_s=1e-9) as late:
            assert late.result().finish_reason == "timeout"
        assert seen(session) == before
        session.stream("hello", max_tokens=90, ignore_eos=True).result()
        session.undo()
        stopped = session.stream("hello", ignore_eos=True)
        stopped.cancel()  # perhaps while it reads again
        session.undo()
        assert seen(session) == before
        assert say(session, 5) == say(plain, 5)
        assert len(session.messages) == len(plain.messages)


def test_sessions_of_an_event_loop_undo(model: sinkstream.Model) -> None:
    async def talk(session: sinkstream.Session, undoes: bool) -> list[int]:
        await session.aappend("hello there " * 20)
        if undoes:
            stream = session.stream("hello", max_tokens=80, ignore_eos=True)
            await stream.aresult()
            await session.aappend("again " * 20)
            assert session.undo() == [{"role": "user", "content": "again " * 20}]
            assert [one["role"] for one in session.undo()] == ["user", "assistant"]
            assert session.stats.unread_tokens > 0
        stream = session.stream("so", max_tokens=20, ignore_eos=True, temperature=0)
        return (await stream.aresult()).token_ids

    with model.session() as session, model.session() as plain:
        assert asyncio.run(talk(session, undoes=True)) == asyncio.run(talk(plain, undoes=False))


def test_a_turn_counts_what_it_reads_again(model: sinkstream.Model) -> None:
    with model.session() as session:
        session.append([9] * 300)
        session.stream([5, 6], max_tokens=80, ignore_eos=True).result()
        session.undo()
        unread = session.stats.unread_tokens
        assert unread > 60
        stream = session.stream([5, 6, 7], max_tokens=3, ignore_eos=True)
        stats = stream.result().stats
        assert (stats.prompt_tokens, stats.replayed_tokens) == (3, unread)
        assert session.stats.unread_tokens == 0


def test_a_fork_and_a_file_undo_what_was_before_them(
    model: sinkstream.Model, tmp_path: Path
) -> None:
    with model.session() as session:
        for turn in range(6):
            say(session, turn)
        session.save(tmp_path / "talk")
        messages = session.messages
        for _ in range(3):
            session.undo()
        before = seen(session)
        expected = say(session, 9)
        with model.load_session(tmp_path / "talk") as loaded:
            assert loaded.messages == messages
            with pytest.raises(InvalidArgument, match="there is no last turn to undo"):
                loaded.cancel("drop")
            loaded.undo()
            session.close()
            with loaded.fork() as fork:
                for one in (loaded, fork):
                    for _ in range(2):
                        one.undo()
                    assert seen(one) == before
                    assert say(one, 9) == expected


def test_a_session_that_is_undone_to_less_than_a_window_is_saved(
    model: sinkstream.Model, tmp_path: Path
) -> None:
    window = 60
    with model.session() as session:
        session.append([9] * (window // 2))
        session.append([8] * 3 * window)  # evicts the tokens before it
        session.undo()
        session.save(tmp_path / "short")
        with model.load_session(tmp_path / "short") as loaded:
            assert loaded.token_ids == session.token_ids
            assert say(loaded, 5) == say(session, 5)


def test_a_session_forgets_what_it_has_no_room_for(
    model: sinkstream.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MOST_TURNS", 3)
    with model.session() as session:
        for number in range(9):
            session.append(f"number {number}")
        assert [one["content"] for one in session.messages] == ["number 6", "number 7", "number 8"]
        for number in (8, 7, 6):
            assert session.undo()[0]["content"] == f"number {number}"
        with pytest.raises(InvalidArgument, match="there must be a turn"):
            session.undo()


def test_a_file_of_an_earlier_version_has_no_turns_to_undo(
    model: sinkstream.Model, tmp_path: Path
) -> None:
    file = tmp_path / "talk"
    with model.session() as session:
        for turn in range(4):
            say(session, turn)
        session._tokens.save(file, lambda: None)  # as the server does
        header, _ = split(file.read_bytes())
        assert header["__metadata__"]["format_version"] == "1"
        before = seen(session)
    with model.load_session(file) as loaded:
        assert loaded.messages == []
        with pytest.raises(InvalidArgument, match="there must be a turn"):
            loaded.undo()
        loaded.append("hello " * 200)
        with pytest.raises(InvalidArgument, match="or of those since it was loaded"):
            loaded.undo()
        assert [one["content"] for one in loaded.messages] == ["hello " * 200]
        while loaded.stats.tokens < LAYERS * 60 + before[1].tokens:
            loaded.append("hello " * 20)
        kept = seen(loaded)
        loaded.append("hello " * 20)
        loaded.undo()  # what has to be read again has come since
        assert seen(loaded) == kept


def test_only_one_caller_at_a_time_undoes(model: sinkstream.Model) -> None:
    with model.session() as session:
        session.append("hello")
        with session._tokens.one_caller(), pytest.raises(SessionBusy):
            session.undo()
        session.close()
        with pytest.raises(InvalidArgument, match="must be open, but is closed"):
            session.undo()


@pytest.mark.parametrize(
    ("position", "reason"),
    [
        ([0, 10**6, 0], "a pending token that is not in the vocabulary"),
        ([0, -1, 0], "not three numbers"),
        ([10**6, None, 0], "out of order"),
        ([0, None], "not enough values"),
    ],
)
def test_a_conversation_that_cannot_be_is_refused(position: list[Any], reason: str) -> None:
    turn = {
        "position": position, "after": None, "reply_is_open": False, "turns_read_again": 0,
        "said": [], "reply": None,
    }  # fmt: skip
    text = history.json.dumps({"opening": [], "turns": [turn]}).encode()
    with pytest.raises(CheckpointError, match=f"`conversation` of talk must be .*{reason}"):
        history.decode_history(text, "talk", 100, 300)
