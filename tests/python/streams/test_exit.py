"""The interpreter may exit while daemon threads wait in native code: exit code 0, and no output."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.python.lanes import cases

RUNS = 20  # a third of them failed before

START = """
import asyncio, pathlib, sys, threading, time
import sinkstream

folder, scratch = sys.argv[1:]
SIZES = {"sinks": 4, "window": 28, "max_sequences": 8}

def forever(call):
    threading.Thread(target=call, daemon=True).start()

def again(call):
    while True:
        call()
"""

STREAMS = """
model = sinkstream.load(folder, **SIZES)
endless = {"ignore_eos": True, "seed": 1}

async def read():
    async for _ in model.stream("the", **endless):
        pass

def save():
    session = model.session()
    session.append("the " * 20)
    path = pathlib.Path(scratch, "a.session")
    again(lambda: (session.save(path), session.fork().close()))

forever(lambda: list(model.stream("the", **endless)))
forever(lambda: list(model.stream("the", **endless).events()))
forever(lambda: model.stream("the", max_tokens=10**9, **endless).result())
forever(lambda: again(lambda: model.generate("the", max_tokens=9, **endless)))
forever(lambda: again(lambda: model.session().append("the " * 40)))
forever(lambda: asyncio.run(read()))
forever(save)
"""

LOAD = """
forever(lambda: again(lambda: sinkstream.load(folder, **SIZES)))
"""

FORWARD = """
import torch

model = sinkstream.load(folder, **SIZES)
ids = torch.ones(1, 600, dtype=torch.int64)
forever(lambda: again(lambda: model.forward(ids)))
forever(lambda: again(lambda: model.new_cache().copy()))
"""

# Early runs exit while threads start, later ones in the middle of their work.
END = "time.sleep({run} * 0.01)\n"


def finished(program: str, folder: Path, scratch: Path) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return subprocess.run(
        [sys.executable, "-c", program, folder, scratch],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    "work",
    [
        pytest.param(STREAMS, id="streams and sessions"),
        pytest.param(LOAD, id="load"),
        pytest.param(FORWARD, id="forward", marks=pytest.mark.slow),  # imports torch
    ],
)
@pytest.mark.parametrize("run", cases(range(RUNS), always=lambda run: run % 3 == 0))
def test_exit_with_daemon_threads_is_silent(
    work: str, run: int, tiny_gguf: Callable[[str, str], Path], tmp_path: Path
) -> None:
    program = START + work + END.format(run=run)
    done = finished(program, tiny_gguf("llama", "F32"), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# Python code that native code runs: it never returns, and takes the GIL again and again.
IMPORT_OF_BATCH = """
class Finder:
    @staticmethod
    def find_spec(name, path, target=None):
        if name == "sinkstream.streams.batch":
            stay()

sys.meta_path.insert(0, Finder)
sys.modules.pop("sinkstream.streams.batch", None)
for _ in range(2):  # the second thread waits for the first one's import
    forever(lambda: list(model.stream("the", ignore_eos=True, seed=1)))
"""

ERROR = """
class Busy(sinkstream.SessionBusy):
    def __init__(self, *args, **named):
        stay()

sinkstream.errors.SessionBusy = Busy
session = model.session()
reply = session.stream("the", ignore_eos=True, seed=1)
forever(lambda: session.append("the"))
"""


@pytest.mark.parametrize(
    "work", [pytest.param(IMPORT_OF_BATCH, id="import"), pytest.param(ERROR, id="error")]
)
def test_exit_while_native_code_runs_python_code_is_silent(
    work: str, tiny_gguf: Callable[[str, str], Path], tmp_path: Path
) -> None:
    program = f"""{START}
reached = threading.Event()

def stay():
    reached.set()
    again(lambda: time.sleep(0.001))

model = sinkstream.load(folder, **SIZES)
{work}
assert reached.wait(30)
time.sleep(0.1)
"""
    done = finished(program, tiny_gguf("llama", "F32"), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_call_of_a_daemon_thread_at_exit_passes_except_exception(
    tiny_gguf: Callable[[str, str], Path], tmp_path: Path
) -> None:
    program = (
        START
        + """
import atexit

@atexit.register
def join():  # runs after the models were closed, because it is registered before any is loaded
    worker.join(20)
    print(worker.is_alive(), caught)

model = sinkstream.load(folder, **SIZES)
caught = []

def work():
    while True:
        try:
            model.generate("the", max_tokens=9, ignore_eos=True)  # an empty reply would warn
        except Exception as error:
            caught.append(error)

worker = threading.Thread(target=work, daemon=True)
worker.start()
time.sleep(0.1)
"""
    )
    done = finished(program, tiny_gguf("llama", "F32"), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False []\n", "")
