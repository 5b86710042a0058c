"""`asession`, `afork`, `asave`, `aload_session`: as the blocking forms, but the loop runs."""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream import CapacityError, CheckpointError, EngineDead, InvalidArgument, SessionBusy
from sinkstream.model import host_of
from sinkstream.sessions import file
from sinkstream.text.template_turns import TemplateTurns
from tests.python.sessions.test_session import ids_of_length, reply
from tests.python.waiting import wait_until_idle

OPTIONS: dict[str, Any] = {"max_tokens": 8, "temperature": 1.0, "seed": 1, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tiny_folder: Callable[[str], Path]) -> Path:
    return tiny_folder("llama")


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[sinkstream.Model]:
    with sinkstream.load(folder, sinks=4, window=60, threads=1, max_sequences=3) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def real(smollm2: Path, threads: int) -> Iterator[sinkstream.Model]:
    with sinkstream.load(smollm2, window=252, threads=threads, max_sequences=3) as loaded:
        yield loaded


def run(main: Coroutine[Any, Any, Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(60):
            return await main

    return asyncio.run(bounded())


async def pauses_while(waited: Coroutine[Any, Any, Any]) -> tuple[float, Any]:
    """Return the longest time that the loop stood still during `waited`, and its result."""
    longest, last = 0.0, time.perf_counter()

    async def tick() -> None:
        nonlocal longest, last
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now

    ticking = asyncio.create_task(tick())
    try:
        result = await waited
    finally:
        ticking.cancel()
    return max(longest, time.perf_counter() - last), result


def test_the_async_forms_give_what_the_blocking_ones_give(
    model: sinkstream.Model, tmp_path: Path
) -> None:
    ids = ids_of_length(40, 3)
    with model.session() as session:
        session.append(ids)
        first = reply(session.stream([7], **OPTIONS))

    async def main() -> None:
        with await model.asession() as session:
            await session.aappend(ids)
            with await session.afork() as fork:
                assert reply(fork.stream([7], **OPTIONS)) == first
            await session.asave(tmp_path / "x.session")
            assert reply(session.stream([7], **OPTIONS)) == first
        with await model.aload_session(tmp_path / "x.session") as loaded:
            assert reply(loaded.stream([7], **OPTIONS)) == first

    run(main())
    wait_until_idle(model)


def test_the_loop_runs_while_a_system_prompt_is_read(real: sinkstream.Model) -> None:
    system = "The cat sat on the mat. " * 60
    begin = time.perf_counter()
    with real.session(system) as session:
        took, transcript = time.perf_counter() - begin, session.transcript
    pause, session = run(pauses_while(real.asession(system)))
    with session:
        assert session.transcript == transcript
    assert pause < took / 4, f"the loop stood still for {pause:.3f} of {took:.3f} s"


def test_arguments_are_those_of_session(real: sinkstream.Model) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
    with real.session("You are brief.", messages=messages, sinks="system") as expected:
        session = run(real.asession("You are brief.", messages=messages, sinks="system"))
        with session:
            assert (session.token_ids, session.sinks) == (expected.token_ids, expected.sinks)


def test_errors_are_those_of_the_blocking_forms(model: sinkstream.Model, tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(InvalidArgument, match="session: `sinks` must"):
            await model.asession(sinks=64)
        with pytest.raises(TypeError, match="session: `sinks` must"):
            await model.asession(sinks=1.5)  # type: ignore[arg-type]  # the point of the test
        with pytest.raises(CheckpointError, match="load_session"):
            await model.aload_session(tmp_path / "none.session")
        session = await model.asession()
        with session, pytest.raises(OSError, match="cannot be written"):
            await session.asave(tmp_path / "no folder" / "x.session")
        for use in (session.afork, lambda: session.asave(tmp_path / "x.session")):
            with pytest.raises(InvalidArgument, match="closed"):
                await use()
        with model.session() as busy:
            with busy.stream([5], ignore_eos=True):
                for use in (busy.afork, lambda: busy.asave(tmp_path / "x.session")):
                    with pytest.raises(SessionBusy):
                        await use()
            with pytest.raises(CapacityError), model.session(), model.session():
                await model.asession()

    run(main())
    wait_until_idle(model)
    assert list(tmp_path.iterdir()) == []


def test_a_closed_model_says_so(folder: Path, tmp_path: Path) -> None:
    model = sinkstream.load(folder, sinks=4, window=60, threads=1)
    model.close()

    async def main() -> None:
        for use in (model.asession, lambda: model.aload_session(tmp_path / "x.session")):
            with pytest.raises(EngineDead, match="closed"):
                await use()

    run(main())


@pytest.mark.parametrize("delay_s", [0, 0.001, 0.01, 0.05, 0.2])
def test_a_cancelled_task_leaves_no_session(
    model: sinkstream.Model, tmp_path: Path, delay_s: float
) -> None:
    messages = [{"role": "user", "content": "a b c " * 2_000}]
    path = tmp_path / "x.session"

    async def main() -> None:
        with model.session() as session:
            session.append([5, 6, 7])
            session.save(path)
            forms: list[Callable[[], Coroutine[Any, Any, Any]]] = [
                lambda: model.asession(messages=messages),
                session.afork,
                lambda: model.aload_session(path),
            ]
            for form in forms:
                task = asyncio.create_task(form())
                await asyncio.sleep(delay_s)
                was_done = task.done()
                task.cancel()
                (outcome,) = await asyncio.gather(task, return_exceptions=True)
                if was_done:
                    outcome.close()
                else:
                    assert isinstance(outcome, asyncio.CancelledError)
        wait_until_idle(model)

    run(main())


def test_a_cancelled_save_leaves_the_old_file_and_a_free_session(
    model: sinkstream.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_writing, let_go = threading.Event(), threading.Event()

    def write_slowly(*arguments: Any) -> None:
        is_writing.set()
        let_go.wait(10)
        write(*arguments)

    write = file._write
    path = tmp_path / "x.session"
    with model.session() as session:
        session.append([5, 6, 7])
        session.save(path)
        before = path.read_bytes()
        session.append([8])
        monkeypatch.setattr(file, "_write", write_slowly)

        async def main() -> None:
            saving = asyncio.create_task(session.asave(path))
            while not is_writing.is_set():
                await asyncio.sleep(0.001)
            saving.cancel()
            await asyncio.sleep(0.01)
            let_go.set()
            with pytest.raises(asyncio.CancelledError):
                await saving
            session.append([9])  # at once

        run(main())
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]


def test_a_warning_of_asession_names_the_line_that_waits(real: sinkstream.Model) -> None:
    turns = host_of(real).formats.turns(None)
    assert isinstance(turns, TemplateTurns)

    async def main() -> None:
        (await real.asession()).close()

    with warnings.catch_warnings(record=True) as caught, pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("always")
        differs = turns.with_difference("session: differs.")
        patch.setattr(host_of(real).formats, "turns", lambda *_: differs)
        run(main())
    assert [(str(one.message), one.filename) for one in caught] == [("session: differs.", __file__)]
