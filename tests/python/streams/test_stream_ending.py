"""Every way to end a generation: the engine is idle soon after, and the process ends cleanly."""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import sinkstream
from sinkstream import Token
from tests.python.waiting import wait_until_idle

PROMPT = [5, 9, 17]


def endless(model: sinkstream.Model) -> sinkstream.Stream:
    return model.stream(PROMPT, temperature=1.0, ignore_eos=True)


# On an idle machine an interrupt is noticed within 0.2 s and an exit takes at most 2 s;
# `engine_bench.py --only stop` measures it. This limit only detects hangs.
SOON_S = 20


def test_break_of_an_unnamed_stream_ends_it(model: sinkstream.Model) -> None:
    for _ in endless(model):
        break
    wait_until_idle(model)


def test_break_of_unnamed_events_ends_the_stream(model: sinkstream.Model) -> None:
    for event in endless(model).events():
        if isinstance(event, Token):
            break
    wait_until_idle(model)


def test_break_of_a_named_stream_lets_it_be_read_on(model: sinkstream.Model) -> None:
    running = endless(model)
    for _ in running:
        break
    assert next(running)
    assert model.stats()["running"] == 1
    del running
    wait_until_idle(model)


def test_close_ends_a_stream_and_drops_what_is_unread(model: sinkstream.Model) -> None:
    running = endless(model)
    read = next(running)
    running.close()
    wait_until_idle(model)
    assert list(running) == []
    assert list(running.events()) == []
    running.close()
    result = running.result()
    assert result.text == read
    assert result.finish_reason == running.finish_reason == "cancelled"


def test_leaving_a_with_block_ends_a_stream(model: sinkstream.Model) -> None:
    with endless(model) as running:
        next(running)
    wait_until_idle(model)


def test_an_exception_in_the_loop_ends_a_stream(model: sinkstream.Model) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        for _ in endless(model):
            1 / 0  # noqa: B018
    wait_until_idle(model)


def test_cancel_leaves_what_was_produced(model: sinkstream.Model) -> None:
    running = endless(model)
    first = next(running)
    running.cancel()
    wait_until_idle(model)
    text = first + "".join(running)
    result = running.result()
    assert result.text == text
    assert result.finish_reason == "cancelled"
    assert model.tokenizer is not None
    assert text == model.tokenizer.decode(result.token_ids, skip_special_tokens=True)


def test_cancel_of_a_finished_stream_changes_nothing(model: sinkstream.Model) -> None:
    running = model.stream(PROMPT, max_tokens=3, ignore_eos=True)
    assert running.result().finish_reason == "length"
    running.cancel()
    running.close()
    assert running.result().finish_reason == "length"


def test_a_stream_in_a_reference_cycle_ends_with_the_collector(model: sinkstream.Model) -> None:
    cycle: list[object] = [endless(model)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    wait_until_idle(model)


def test_many_starts_and_cancels_leak_nothing(model: sinkstream.Model) -> None:
    for i in range(300):
        running = endless(model)
        if i % 3 == 0:
            next(running)
        running.close() if i % 2 else running.cancel()
    del running
    wait_until_idle(model)


def test_a_stream_keeps_its_model(folder: Path) -> None:
    running = sinkstream.load(folder, sinks=4, window=60, threads=1).stream(
        PROMPT, max_tokens=50, ignore_eos=True
    )
    gc.collect()
    assert len(running.result().token_ids) == 50


def test_streams_of_a_closed_model_end_as_cancelled(folder: Path) -> None:
    with sinkstream.load(folder, sinks=4, window=60, threads=1) as short:
        running = endless(short)
        next(running)
    list(running)
    assert running.finish_reason == "cancelled"
    with pytest.raises(sinkstream.EngineDead, match="the model is closed"):
        endless(short)


def test_a_stream_that_waits_for_memory_of_unread_streams_is_refused(folder: Path) -> None:
    options = {"sinks": 4, "window": 60, "threads": 1, "max_sequences": 1}
    with sinkstream.load(folder, **options) as small:  # type: ignore[arg-type]
        unread = endless(small)
        waiting = small.stream(PROMPT, max_tokens=3)
        with pytest.raises(sinkstream.CapacityError, match="not being read"):
            next(waiting)
        assert list(waiting) == [], "an error is raised once by iteration"
        with pytest.raises(sinkstream.CapacityError):
            waiting.result()
        assert waiting.finish_reason == "error"
        unread.close()
        assert len(small.stream(PROMPT, max_tokens=3, ignore_eos=True).result().token_ids) == 3


# ---- processes -----------------------------------------------------------------------------------

# Imports once, which takes seconds, and forks for each script. A script runs at module level, and
# its process exits like any Python process.
SERVER = """
import atexit, asyncio, json, os, signal, sys, threading, time
import sinkstream

for line in sys.stdin:
    folder, script, out, err = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), time.monotonic(), flush=True)
else:
    sys.exit()

os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT), 1)
os.dup2(os.open(err, os.O_WRONLY | os.O_CREAT), 2)
model = sinkstream.load(folder, sinks=4, window=60, threads=1)

def endless():
    return model.stream([5, 9, 17], temperature=1.0, ignore_eos=True)

exec(script)
"""


@dataclass
class Done:
    code: int
    stdout: str
    stderr: str
    ended_at: float


RunScript = Callable[[str], Done]


@pytest.fixture(scope="module")
def run_script(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunScript]:
    folder_of_scripts = tmp_path_factory.mktemp("scripts")
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        requests, replies = server.stdin, server.stdout

        def run(script: str) -> Done:
            out, err = folder_of_scripts / "out", folder_of_scripts / "err"
            out.write_text("")
            err.write_text("")
            print(
                json.dumps([str(folder), textwrap.dedent(script), str(out), str(err)]),
                file=requests,
                flush=True,
            )
            ready, _, _ = select.select([replies], [], [], 60)
            if not ready:
                server.kill()
                pytest.fail("the script does not end")
            code, ended_at = replies.readline().split()
            return Done(int(code), out.read_text(), err.read_text(), float(ended_at))

        yield run
        requests.close()


@pytest.fixture(scope="module")
def plain_exit_s(run_script: RunScript) -> float:
    """Return the time of an exit without a stream; torch takes most of it."""
    done = run_script("print(time.monotonic())")
    assert (done.code, done.stderr) == (0, "")
    return done.ended_at - float(done.stdout)


EXITS = {
    "a stream at module level": "s = endless(); next(s)",
    "a stream that is not read": "s = endless(); time.sleep(0.3)",
    "a stream in a cycle": "c = [endless()]; c.append(c); next(c[0])",
    "a stream in a daemon thread": """
        def read():
            for _ in endless(): pass
        threading.Thread(target=read, daemon=True).start()
        time.sleep(0.3)
    """,
    "a stream held by a function's closure": """
        s = endless()
        @atexit.register
        def last(): next(s, None)
        next(s)
    """,
    "a stream inside asyncio": """
        async def main():
            s = endless()
            await asyncio.to_thread(next, s)
        asyncio.run(main())
    """,
    "a stream that tasks read": """
        async def read():
            async for _ in endless(): pass
        async def main():
            global tasks
            tasks = [asyncio.create_task(read()) for _ in range(4)]
            await asyncio.sleep(0.3)
        asyncio.run(main())
    """,
    "a stream that a task of a loop in a daemon thread reads": """
        async def main():
            async for _ in endless(): pass
        threading.Thread(target=asyncio.run, args=(main(),), daemon=True).start()
        time.sleep(0.3)
    """,
    "a stream in mid-iteration at sys.exit": """
        for _ in endless():
            print(time.monotonic())
            sys.exit(0)
    """,
}


@pytest.mark.parametrize("name", EXITS)
def test_the_process_exits_cleanly_with(
    name: str, run_script: RunScript, plain_exit_s: float
) -> None:
    done = run_script(textwrap.dedent(EXITS[name]) + "\nprint(time.monotonic())")
    assert (done.code, done.stderr) == (0, "")
    assert done.ended_at - float(done.stdout) < plain_exit_s + SOON_S


def test_the_process_exits_with_its_own_code_after_an_exception(run_script: RunScript) -> None:
    done = run_script("s = endless(); next(s); raise SystemExit(7)")
    assert (done.code, done.stderr) == (7, "")
    done = run_script("s = endless()\nfor _ in s: raise ValueError('mine')")
    assert done.code == 1
    assert done.stderr.endswith("ValueError: mine\n")


def test_ctrl_c_ends_a_stream_soon_and_the_model_stays_usable(
    run_script: RunScript,
) -> None:
    # The second stream has no text when the interrupt arrives: its reader is asleep inside.
    script = """
        def interrupt_after(delay):
            def send():
                while not model.stats()["running"]: time.sleep(0.001)
                time.sleep(delay)
                global sent
                sent = time.monotonic()
                os.kill(os.getpid(), signal.SIGINT)
            threading.Thread(target=send).start()
        for reader in (lambda: [None for _ in endless()], lambda: list(endless().events()),
                       lambda: endless().result()):
            interrupt_after(0.3)
            try:
                reader()
            except KeyboardInterrupt as error:
                print(time.monotonic() - sent)
                kept = error  # its traceback keeps the running stream alive
                while (stats := model.stats())["running"] or stats["waiting"]: time.sleep(0.001)
        print(len(model.stream([5], max_tokens=9, ignore_eos=True).result().token_ids))
    """
    done = run_script(script)
    assert (done.code, done.stderr) == (0, "")
    *delays, tokens = done.stdout.split()
    assert len(delays) == 3
    assert all(float(delay) < SOON_S for delay in delays), delays
    assert tokens == "9"


def test_ctrl_c_reaches_a_reader_that_sleeps(
    run_script: RunScript,
) -> None:
    # Another stream holds the only seat and is being read: the reader waits for memory forever.
    script = """
        model.close()
        model = sinkstream.load(folder, sinks=4, window=60, threads=1, max_sequences=1)
        holder = endless()
        def send():
            while not model.stats()["waiting"]: next(holder)
            for _ in range(20): next(holder)
            global sent
            sent = time.monotonic()
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=send).start()
        try:
            next(endless())
        except KeyboardInterrupt:
            print(time.monotonic() - sent)
    """
    done = run_script(script)
    assert (done.code, done.stderr) == (0, "")
    assert float(done.stdout) < SOON_S


def test_a_signal_handlers_exception_reaches_the_reader(model: sinkstream.Model) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise TimeoutError("time is up")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(TimeoutError, match="time is up"):
            for _ in endless(model):
                pass
    finally:
        signal.signal(signal.SIGALRM, before)
    wait_until_idle(model)


def test_a_forked_child_gets_an_error_and_the_parent_goes_on(
    run_script: RunScript,
) -> None:
    script = """
        s = endless()
        next(s)
        child = os.fork()
        if child == 0:
            refused = 0
            for call in (endless, lambda: next(s), lambda: s.stats, model.stats):
                try:
                    call()
                except sinkstream.ForkError:
                    refused += 1
            s.close()
            s.cancel()
            del s
            sys.exit(0 if refused == 4 else 1)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        for _ in range(100): next(s)
        print("fine")
    """
    done = run_script(script)
    assert (done.code, done.stdout, done.stderr) == (0, "fine\n", "")


def test_a_forked_child_gets_an_error_in_asyncio_too(run_script: RunScript) -> None:
    script = """
        async def main():
            s = endless()
            await anext(s)
            child = os.fork()
            if child == 0:
                return await in_child(s)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            assert status == 0, status
            for _ in range(100): await anext(s)
            print("fine")

        async def in_child(s):
            refused = 0
            for read in (anext(s), anext(s.aevents()), s.aresult()):
                try:
                    await read
                except sinkstream.ForkError:
                    refused += 1
            await s.aclose()
            os._exit(0 if refused == 3 else 1)

        asyncio.run(main())
    """
    done = run_script(script)
    assert (done.code, done.stdout, done.stderr) == (0, "fine\n", "")


def test_ctrl_c_ends_what_a_task_reads(run_script: RunScript) -> None:
    script = """
        s = endless()
        is_read = threading.Event()
        async def main():
            async for _ in s: is_read.set()
        def send():
            is_read.wait()
            global sent
            sent = time.monotonic()
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=send).start()
        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            print(time.monotonic() - sent)
        print(s.result().finish_reason)
    """
    done = run_script(script)
    assert (done.code, done.stderr) == (0, "")
    delay, reason = done.stdout.split()
    assert float(delay) < SOON_S
    assert reason == "cancelled"


def test_signals_go_to_threads_of_python_only(model: sinkstream.Model) -> None:
    assert model.stats()["running"] == 0
    found = 0
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        if (task / "comm").read_text().strip() == "sinkstream":
            found += 1
            status = (task / "status").read_text()
            blocked = int(status.split("SigBlk:")[1].split()[0], 16)
            assert blocked & (1 << (signal.SIGINT - 1))
    assert found >= 1
