"""Streams and threads: the generation never waits for the GIL, and one thread reads a stream."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import sinkstream
from sinkstream.streams import inbox as inbox_module
from sinkstream.streams import stream as stream_module

PROMPT = [5, 9, 17]


@pytest.fixture(scope="module")
def model(tiny_folder: Callable[[str], Path]) -> Iterator[sinkstream.Model]:
    folder = tiny_folder("llama")
    with sinkstream.load(folder, sinks=4, window=60, threads=1, max_sequences=16) as loaded:
        yield loaded


def endless(model: sinkstream.Model) -> sinkstream.Stream:
    return model.stream(PROMPT, temperature=1.0, ignore_eos=True)


def hold_gil(seconds: float) -> None:
    """Sleep without releasing the GIL."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def test_generation_goes_on_while_python_holds_the_gil(model: sinkstream.Model) -> None:
    with endless(model) as running:
        for seconds in (*[0.05] * 20, *[0.5] * 10, *[2.0] * 5):
            next(running)
            before = model.stats()["generated_tokens"]
            hold_gil(seconds)
            # Thousands per second; none while the stream is full, few while the machine is busy.
            if model.stats()["generated_tokens"] - before > 20:
                return
    pytest.fail("nothing is generated while Python holds the GIL")


def test_waiting_lets_other_threads_run(model: sinkstream.Model) -> None:
    """A reader that sleeps does not hold the GIL: another thread counts meanwhile."""
    holders = [endless(model) for _ in range(16)]
    deadline = time.monotonic() + 30
    while model.stats()["parked"] < 16 and time.monotonic() < deadline:
        time.sleep(0.01)
    waiting = endless(model)  # there is no free seat: it yields nothing for a second
    ended = threading.Event()

    def read() -> None:
        with pytest.raises(sinkstream.CapacityError):
            next(waiting)
        ended.set()

    reader = threading.Thread(target=read)
    reader.start()
    count = 0
    begin = time.monotonic()
    while not ended.is_set() and time.monotonic() < begin + 0.5:
        count += 1
    assert count > 10_000
    reader.join()
    for holder in holders:
        holder.close()


def test_a_second_reader_is_refused_and_the_first_one_goes_on(model: sinkstream.Model) -> None:
    holders = [endless(model) for _ in range(16)]
    waiting = model.stream(PROMPT, max_tokens=5, ignore_eos=True)
    results: list[sinkstream.Result] = []
    first = threading.Thread(target=lambda: results.append(waiting.result()))
    first.start()
    while not waiting._one_reader.is_taken:
        time.sleep(0.001)
    for read in (lambda: next(waiting), lambda: next(waiting.events()), waiting.result):
        with pytest.raises(sinkstream.SessionBusy, match="another is reading this stream"):
            read()
    for holder in holders:
        holder.close()
    first.join()
    assert len(results[0].token_ids) == 5


def test_a_stream_may_be_closed_while_another_thread_reads_it(model: sinkstream.Model) -> None:
    for delay in (0.0, 0.001, 0.02):
        running = endless(model)
        count: list[int] = []
        reader = threading.Thread(target=lambda r=running, c=count: c.append(sum(map(len, r))))
        reader.start()
        time.sleep(delay)
        running.close()
        reader.join(timeout=60)
        assert not reader.is_alive()
        assert len(count) == 1


READ_FILES = (stream_module.__file__, inbox_module.__file__)


@contextmanager
def at_step(number: int, action: Callable[[], None]) -> Iterator[list[int]]:
    """Call a function between two instructions of a read, as another thread might.

    Yields the number of the last step that was reached.
    """
    steps = [0]

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., object] | None:
        if frame.f_code.co_filename not in READ_FILES:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            steps[0] += 1
            if steps[0] == number:
                action()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield steps
    finally:
        sys.settrace(before)


READERS: dict[str, Callable[[sinkstream.Stream], object]] = {
    "text": lambda running: next(running, None),
    "events": lambda running: next(running.events(), None),
    "events that are there": lambda running: [next(running.events(), None) for _ in range(2)],
    "text of events that are there": lambda running: [
        next(running.events(), None),
        next(running, None),
    ],
    "the result": lambda running: running.result(),
}


@pytest.mark.parametrize("name", READERS)
def test_a_stream_may_be_closed_between_any_two_steps_of_a_read(
    model: sinkstream.Model, name: str
) -> None:
    number = 0
    while True:
        number += 1
        running = model.stream(PROMPT, max_tokens=5, ignore_eos=True, stream_interval=5)
        while model.stats()["running"] or model.stats()["waiting"]:
            time.sleep(0)  # until a single read can take all of it
        with at_step(number, running.close) as steps:
            READERS[name](running)
        if steps[0] < number:
            break
        assert list(running.events()) == []
        assert list(running) == []
    assert number > 50  # otherwise nothing was traced


def test_streams_of_many_threads_are_what_each_is_alone(model: sinkstream.Model) -> None:
    def generate(seed: int) -> list[int]:
        options = {"temperature": 1.0, "seed": seed, "ignore_eos": True}
        return model.generate(PROMPT, max_tokens=80, **options).token_ids

    alone = [generate(seed) for seed in range(24)]
    together: dict[int, list[int]] = {}
    threads = [
        threading.Thread(target=lambda s=seed: together.update({s: generate(s)}))
        for seed in range(24)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[seed] for seed in range(24)] == alone
