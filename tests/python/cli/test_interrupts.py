"""Ctrl-C and SIGTERM at any moment end a command with 130 or 143 and no traceback."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from sinkstream.cli import interrupts
from tests.python.cli.signals import end_by_signal
from tests.python.cli.terminal import CTRL_C, Terminal

# Sends Ctrl-C to this process when it begins to import the module that is named first.
_AT_IMPORT = """
import os, signal, sys
wanted = sys.argv.pop(1)
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
        return None
sys.meta_path.insert(0, Finder())
from sinkstream.cli import main
sys.exit(main())
"""

# The same, when a function is called: module, name.
_AT_CALL = """
import importlib, os, signal, sys
module, name = sys.argv.pop(1).split(":")
home = importlib.import_module(module)
former = getattr(home, name)
def interrupted(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGINT)
    return former(*args, **kwargs)
setattr(home, name, interrupted)
from sinkstream.cli import main
sys.exit(main())
"""


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    "module",
    [
        "sinkstream.cli.program", "typer", "typer.core", "sinkstream.cli.generate",
        "sinkstream.streams.stream", "sinkstream.loading.load", "tokenizers", "jinja2", "numpy",
        "sinkstream._core",
    ],
)  # fmt: skip
def test_ctrl_c_while_modules_are_imported_is_quiet(checkpoint: str, module: str) -> None:
    done = run(_AT_IMPORT, module, "generate", "hello", "-m", checkpoint, "-n", "3")
    if module == "numpy" and done.returncode == 0:
        pytest.skip("this command imports no numpy")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("command", ["--version", "--help", "nope"])
def test_ctrl_c_is_quiet_in_the_shortest_commands(command: str) -> None:
    module = "sinkstream._build" if command == "--version" else "sinkstream.cli.program"
    done = run(_AT_IMPORT, module, command)
    if done.returncode == 0:
        pytest.skip("imported before")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(
    "function",
    [
        "sinkstream.loading.load:open_tensors", "sinkstream.loading.load:with_text",
        "sinkstream.loading.load:_finish_reading", "sinkstream.loading.load:Model",
        "sinkstream.host:is_chat",
    ],
)  # fmt: skip
def test_ctrl_c_while_a_model_is_loaded_is_quiet(checkpoint: str, function: str) -> None:
    done = run(_AT_CALL, function, "generate", "hello", "-m", checkpoint, "-n", "3")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ctrl_c_after_the_end_is_quiet(checkpoint: str) -> None:
    script = (
        "import atexit, os, signal, sys\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "from sinkstream.cli import main\n"
        "sys.exit(main())\n"
    )
    done = run(script, "generate", "hello", "-m", checkpoint, "-n", "3")
    assert (done.returncode, done.stderr) == (130, "")
    assert done.stdout.endswith("\n")


def test_a_trace_that_ctrl_c_interrupts_leaves_no_partial_file(
    checkpoint: str, tmp_path: Path
) -> None:
    for module in ("sinkstream.loading.load", "tokenizers"):
        done = run(
            _AT_IMPORT,
            *(module, "generate", "hello", "-m", checkpoint, "-n", "3"),
            *("--trace", f"{tmp_path}/trace.json"),
        )
        assert (done.returncode, done.stderr) == (130, "")
        assert list(tmp_path.iterdir()) == []


def test_an_ignored_ctrl_c_stays_ignored(checkpoint: str) -> None:
    """As in a shell script's background jobs."""
    script = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + _AT_IMPORT
    done = run(script, "typer", "generate", "hello", "-m", checkpoint, "-n", "3")
    assert (done.returncode, done.stderr) == (0, "")


def test_sigterm_ends_it_quietly(checkpoint: str) -> None:
    program = [sys.executable, "-m", "sinkstream.cli", "demo", "--endless", "-m", checkpoint]
    code, _, err = end_by_signal(program, signal.SIGTERM, after=1000)
    assert (code, err) == (143, b"")


@pytest.mark.parametrize("module", ["typer", "sinkstream.loading.load", "tokenizers"])
def test_sigterm_ends_it_quietly_during_imports(checkpoint: str, module: str) -> None:
    script = _AT_IMPORT.replace("SIGINT", "SIGTERM")
    assert script != _AT_IMPORT
    done = run(script, module, "generate", "hello", "-m", checkpoint, "-n", "3")
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "")


def test_an_ignored_sigterm_stays_ignored(checkpoint: str) -> None:
    script = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    script += _AT_IMPORT.replace("SIGINT", "SIGTERM")
    done = run(script, "typer", "generate", "hello", "-m", checkpoint, "-n", "3")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("at", range(1, 8))
def test_a_signal_in_the_event_loops_own_code_leaves_no_task(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, at: int
) -> None:
    """It arrives when the loop has taken a callback and not called it yet."""
    called = begun = ended = 0
    former = asyncio.Handle._run

    def interrupted(handle: asyncio.Handle) -> None:
        nonlocal called
        called += 1
        if called == at:
            signal.raise_signal(number)
        former(handle)

    async def endless() -> None:
        nonlocal begun, ended
        begun += 1
        try:
            while True:
                await asyncio.sleep(0)
        finally:
            ended += 1

    async def wait_for_all() -> None:
        await asyncio.gather(endless(), endless())

    monkeypatch.setattr(asyncio.Handle, "_run", interrupted)
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    interrupts.take_over()
    error = KeyboardInterrupt if number == signal.SIGINT else SystemExit
    try:
        with interrupts.raising(), pytest.raises(error):
            interrupts.run_async(wait_for_all())
    finally:
        for each, handler in zip((signal.SIGINT, signal.SIGTERM), handlers, strict=True):
            signal.signal(each, handler)
    assert called > at
    assert ended == begun


def terminate(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM; between the prompt and the wait for a key, a signal waits for the next."""
    for _ in range(10):
        os.kill(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=3)
            return
    pytest.fail("it does not end")


@pytest.mark.parametrize("command", ["demo", "chat"])
def test_sigterm_at_a_terminal_leaves_it_as_it_was(checkpoint: str, command: str) -> None:
    arguments = {"demo": ["--endless"], "chat": []}[command]
    program = [sys.executable, "-m", "sinkstream.cli", command, *arguments, "-m", checkpoint]
    with Terminal(program, {"TERM": "xterm"}) as terminal:
        before = terminal.read_until("resident" if command == "demo" else "> ")
        terminate(terminal.process)
        code, rest = terminal.end()
    assert code == 143
    assert "Traceback" not in rest
    hidden, shown = ((before + rest).rindex(keys) for keys in ("\x1b[?25l", "\x1b[?25h"))
    assert hidden < shown


def test_a_trace_that_sigterm_interrupts_is_written(checkpoint: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    program = [sys.executable, "-m", "sinkstream.cli", "generate", "a", "-m", checkpoint]
    program += ["--endless", "--ignore-eos", "--trace", str(trace)]
    code, _, err = end_by_signal(program, signal.SIGTERM, after=1000)
    assert (code, err) == (143, b"")
    assert json.loads(trace.read_text())


def test_at_a_terminal_the_shells_prompt_gets_a_line_of_its_own(checkpoint: str) -> None:
    command = [sys.executable, "-m", "sinkstream.cli", "generate", "a" * 24, "-m", checkpoint]
    arguments = ["-n", "1000000", "-t", "0", "--frequency-penalty", "-100", "--ignore-eos"]
    with Terminal([*command, *arguments], {}) as terminal:
        terminal.read_until("a" * 100)
        terminal.press(CTRL_C)
        code, rest = terminal.end()
    assert code == 130
    assert rest.endswith("\n")
    assert "Traceback" not in rest
