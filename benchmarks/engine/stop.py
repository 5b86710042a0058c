"""Measures how soon a generation ends, for every way to end it.

One stream runs alone with a prompt of one token. Each way is tried `rounds` times, interleaved,
after a number of tokens that changes from round to round. "Idle": nothing runs or waits, and all
pages are free, as polled every half a millisecond.

- cancel, close, break of an unnamed stream, del, aclose in asyncio: from the call until idle.
- timeout_s: from the deadline until idle.
- cancel while a prompt is read: the same, in the middle of a prompt of 32 chunks.
  Goal of all these, for the worst: 100 ms plus the longest step that the engine timed for this way.
- Ctrl-C: a program that streams gets SIGINT; from the signal until it catches KeyboardInterrupt.
  Goal for the worst: 200 ms.
- exit: a program ends while its model streams, unread or read by a daemon thread; from its last
  statement until the process is gone. Goal for the worst: 2 s. Interleaved with it, for comparison,
  a program that has only imported torch.
"""

from __future__ import annotations

import asyncio
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import sinkstream
from engine.row import Outcome, Row
from engine.setting import Readers, Setting, endless, prompt, wait_until_idle

HERE = Path(__file__).parent
BEYOND_A_STEP_MS = 100
CTRL_C_MS = 200
EXIT_MS = 2000
ONLY_TORCH = "import time, torch; print(time.monotonic(), flush=True)"
CHUNKS = 32  # of the cancelled prompt


@dataclass(frozen=True)
class Sizes:
    """How often each way is tried."""

    rounds: int = 25
    exits: int = 20
    capacity: int = 256


def begin(model: sinkstream.Model, tokens: int, **options: float) -> sinkstream.Stream:
    """Start a stream and read `tokens` tokens of it."""
    stream = endless(model, prompt(1), **options)
    readers = Readers([stream])
    for _ in range(tokens):
        readers.read()
    return stream


def by_cancel(model: sinkstream.Model, tokens: int) -> float:
    """Cancel a stream; return the monotonic time of the call."""
    stream = begin(model, tokens)
    now = time.monotonic()
    stream.cancel()
    return now


def by_close(model: sinkstream.Model, tokens: int) -> float:
    """Close a stream; return the monotonic time of the call."""
    stream = begin(model, tokens)
    now = time.monotonic()
    stream.close()
    return now


def by_break(model: sinkstream.Model, tokens: int) -> float:
    """Leave the loop over an unnamed stream; return the monotonic time."""
    now = 0.0
    for number, _ in enumerate(endless(model, prompt(1))):
        if number >= tokens:
            now = time.monotonic()
            break
    return now


def by_del(model: sinkstream.Model, tokens: int) -> float:
    """Delete the only reference to a stream; return the monotonic time."""
    stream = begin(model, tokens)
    now = time.monotonic()
    del stream
    return now


def by_aclose(model: sinkstream.Model, tokens: int) -> float:
    """Close a stream in asyncio; return the monotonic time of the call."""

    async def read_and_close() -> float:
        stream = endless(model, prompt(1))
        for _ in range(tokens):
            await anext(stream)
        now = time.monotonic()
        await stream.aclose()
        return now

    return asyncio.run(read_and_close())


def by_timeout(model: sinkstream.Model, tokens: int) -> float:
    """Let a stream time out; return its deadline on the monotonic clock."""
    timeout_s = 0.05 + 0.01 * tokens
    deadline = time.monotonic() + timeout_s
    begin(model, 1, timeout_s=timeout_s).result()
    return deadline


def by_cancel_in_a_prompt(model: sinkstream.Model, tokens: int) -> float:
    """Cancel a stream while its prompt is read; return the monotonic time of the call."""
    stream = endless(model, prompt(CHUNKS * model.runtime["prefill_chunk"]))
    events = stream.events()
    for _ in range(2 + tokens % 4):  # Started, and some chunks
        next(events)
    time.sleep(0.005 * tokens)  # somewhere in a chunk
    now = time.monotonic()
    stream.cancel()
    return now


WAYS: dict[str, Callable[[sinkstream.Model, int], float]] = {
    "cancel": by_cancel,
    "close": by_close,
    "break": by_break,
    "del": by_del,
    "aclose": by_aclose,
    "timeout_s": by_timeout,
    "cancel while a prompt is read": by_cancel_in_a_prompt,
}


def longest_step_ms(model: sinkstream.Model, first: int) -> float:
    """Return the milliseconds of the longest step from number `first` on."""
    return max(1000 * (step[3] - step[1]) for step in model._native.steps(first))


def end_in_all_ways(
    model: sinkstream.Model, rounds: int
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return the milliseconds until idle, and the longest step, of each way."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    longest = dict.fromkeys(WAYS, 0.0)
    for number in range(rounds):
        for way, end in WAYS.items():
            first = model.stats()["steps"]
            called = end(model, 2 + number % 7)
            found[way].append(1000 * (wait_until_idle(model) - called))
            longest[way] = max(longest[way], longest_step_ms(model, first))
    return found, longest


def interrupt(setting: Setting, rounds: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds from a signal to the exception, and to an idle engine."""
    script = HERE / "interrupted.py"
    process = subprocess.Popen(
        [sys.executable, script, str(rounds), setting.path or ""], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    caught, idle = [], []
    moments = random.Random(1)
    with process:
        for _ in range(rounds):
            if process.stdout.readline() != "streaming\n":
                raise RuntimeError("the program to interrupt has ended")
            time.sleep(moments.uniform(0, 0.1))
            sent = time.monotonic()
            process.send_signal(signal.SIGINT)
            times = [float(word) for word in process.stdout.readline().split()]
            caught.append(1000 * (times[0] - sent))
            idle.append(1000 * (times[1] - sent))
    if process.returncode != 0:
        raise RuntimeError(f"the interrupted program ended with {process.returncode}")
    return caught, idle


def exit_ms(arguments: list[str]) -> float:
    """Return the milliseconds from the last statement of a Python program to its end."""
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        last = float(process.stdout.readline())
        process.wait()
        ended = time.monotonic()
    if process.returncode != 0:
        raise RuntimeError(f"a program that should exit cleanly returned {process.returncode}")
    return 1000 * (ended - last)


def worst_row(way: str, found: list[float], goal: float | None) -> Row:
    """Return a row with the worst of several times, in ms."""
    spread = f"worst of {len(found)}; median {statistics.median(found):.3g}"
    return Row(way, max(found), "ms", at_most=goal, detail=spread)


def measure(setting: Setting, sizes: Sizes) -> Outcome:
    """Measure all ways."""
    with setting.load(capacity=sizes.capacity, max_sequences=1) as model:
        begin(model, 8).close()  # brings in the pages of the program itself
        wait_until_idle(model)
        found, longest = end_in_all_ways(model, sizes.rounds)
        evicted, threads = model.stats()["evicted_tokens"], model.runtime["threads"]
    caught, idle = interrupt(setting, sizes.rounds)
    exits, exits_of_torch = [], []
    for number in range(sizes.exits):
        exits_of_torch.append(exit_ms(["-c", ONLY_TORCH]))
        reader = ("unread", "thread")[number % 2]
        exits.append(exit_ms([str(HERE / "exiting.py"), reader, setting.path or ""]))
    rows = [
        worst_row(f"{way}, until idle", found[way], longest[way] + BEYOND_A_STEP_MS) for way in WAYS
    ]
    rows += [
        worst_row("Ctrl-C, until KeyboardInterrupt", caught, CTRL_C_MS),
        worst_row("Ctrl-C, until idle", idle, None),
        worst_row("exit of a program that streams", exits, EXIT_MS),
        worst_row("exit of one that has imported torch", exits_of_torch, None),
    ]
    series = {**found, "Ctrl-C": caught, "Ctrl-C, until idle": idle, "exit": exits}
    series["exit of torch"] = exits_of_torch
    return Outcome(rows, evicted, threads, {"ms": series})
