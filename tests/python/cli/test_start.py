"""The command line starts quickly: it imports only what the called command needs."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import pytest

from sinkstream.cli.program import COMMANDS, function_of
from tests.python.cli.conftest import Run


def modules_after(*arguments: str) -> set[str]:
    """Return the modules that a process has imported after it ran these arguments."""
    code = (
        "import contextlib, io, sys; from sinkstream.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):"
        f" main({list(arguments)!r})\n"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def test_the_version_needs_no_parser_and_no_model() -> None:
    heavy = {"numpy", "rich", "tokenizers", "torch", "typer", "sinkstream.model"}
    assert modules_after("--version") & heavy == set()


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["info", "--help"]], ids=" ".join)
def test_a_closed_pipe_ends_it_without_a_traceback(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # as if `head -c0` had ended
    try:
        done = subprocess.run(
            [sys.executable, "-m", "sinkstream.cli", *arguments],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_the_help_imports_no_command() -> None:
    commands = {f"sinkstream.cli.{name}" for name in COMMANDS}
    assert modules_after("--help") & {"numpy", "torch", *commands} == set()


def test_a_command_in_a_pipe_imports_only_what_it_needs() -> None:
    imported = modules_after("generate", "hello", "-m", "/missing/model.gguf")
    assert "sinkstream.cli.generate" in imported
    assert imported & {"rich", "sinkstream.cli.evaluate", "sinkstream.evaluate"} == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_summarizes_a_command_as_its_own_help_does(run: Run, name: str) -> None:
    assert inspect.getdoc(function_of(name)) == COMMANDS[name]
    for arguments in (("--help",), (name, "--help")):
        outcome = run(*arguments)
        assert outcome.code == 0
        assert " ".join(outcome.out.replace("│", " ").split()).count(COMMANDS[name]) == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_the_options_that_load_a_model(run: Run, name: str) -> None:
    text = run(name, "--help").out
    for option in ("--model", "--sinks", "--window", "--threads", "--device", "--dtype"):
        assert f"{option} " in text


def test_an_unknown_command_is_one_sentence(run: Run) -> None:
    outcome = run("nope")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert "No such command 'nope'" in outcome.err
