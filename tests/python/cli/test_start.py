"""The command line starts quickly: it imports only what the called command needs."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import subprocess
import sys
from dataclasses import asdict

import pytest

import sinkstream
from sinkstream.cli.program import COMMANDS, function_of
from sinkstream.request.options import Sampling
from sinkstream.server.config import SETTINGS
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
def test_the_help_has_an_example_that_the_command_takes(run: Run, name: str) -> None:
    outcome = run(name, "--help")
    example = " ".join(outcome.out.rpartition("Example: ")[2].split())
    program, called, *words = shlex.split(example)
    assert (program, called) == ("sinkstream", name)
    assert {word for word in words if word.startswith("-")} <= set(re.split(r"[\s,]+", outcome.out))
    usage = outcome.out.partition("\n\n")[0]
    assert "{" not in usage


def test_the_help_has_headings_and_the_defaults_of_sampling(run: Run) -> None:
    out = run("serve", "--help").out
    headings = re.findall(r"^(\w[^\n]*):$", out, re.MULTILINE)
    groups = [setting.group for setting in SETTINGS.values() if setting.is_option]
    assert headings == ["Arguments", *dict.fromkeys(groups), "Model", "Options"]
    said = " ".join(run("generate", "--help").out.split())
    for name, value in asdict(Sampling.from_checkpoint({})).items():
        flag = "--" + name.replace("_", "-")
        assert f"Default: the model's own, or {value:g}." in said.partition(flag)[2][:200], name


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_summarizes_a_command_as_its_own_help_does(run: Run, name: str) -> None:
    assert inspect.getdoc(function_of(name)) == COMMANDS[name]
    for arguments in (("--help",), (name, "--help")):
        outcome = run(*arguments)
        assert outcome.code == 0
        assert " ".join(outcome.out.replace("│", " ").split()).count(COMMANDS[name]) == 1


@pytest.mark.parametrize(
    "name", [name for name in COMMANDS if name not in ("models", "quantize", "run")]
)
def test_every_command_has_the_options_that_load_a_model(run: Run, name: str) -> None:
    text = run(name, "--help").out
    for option in ("--model", "--sinks", "--window", "--threads", "--device", "--dtype"):
        assert f"{option} " in text


def test_an_unknown_command_is_one_sentence(run: Run) -> None:
    outcome = run("nope")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert "No such command 'nope'" in outcome.err


@pytest.mark.parametrize("program", ["sinkstream", "sinkstream.cli"])
def test_it_runs_as_a_module(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", program, "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"sinkstream {sinkstream.__version__}\n"


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("--temp", "--temperature"),
        ("--temperture", "--temperature"),
        ("--max_tokens", "--max-tokens"),
        ("--max-new-tokens", "--max-tokens"),
        ("--repeat-penalty", "--repetition-penalty"),
        ("--prefil", "--prefill-chunk"),
    ],
)
def test_a_misspelt_option_is_suggested(run: Run, option: str, meant: str) -> None:
    outcome = run("generate", "hello", option, "3")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == f"sinkstream: No such option: {option}. Did you mean {meant}?\n"


def test_an_option_like_no_other_is_not_explained_away(run: Run) -> None:
    outcome = run("generate", "hello", "--xyzzy")
    assert outcome.err == "sinkstream: No such option: --xyzzy. --help lists them.\n"


@pytest.mark.parametrize("name", ["bench", "chat", "demo", "info"])
def test_the_model_may_be_an_argument(run: Run, name: str) -> None:
    for words in (["/missing/model.gguf"], ["-m", "/missing/model.gguf"]):
        outcome = run(name, *words)
        assert outcome.code == 2
        assert '"/missing/model.gguf"' in outcome.err
    outcome = run(name, "/missing/model.gguf", "--model", "/missing/model.gguf")
    assert outcome.err == (
        f"sinkstream: {name}: the model must be given once, but both MODEL and --model are set.\n"
    )


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("columns", ["50", "60", "200"])
def test_the_help_fits_any_width_and_cuts_no_name(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    text = run(name, "--help").out
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= int(columns)
    for parameter in inspect.signature(function_of(name)).parameters:
        if parameter not in ("as_json", "show_all", "model_option", "model", "source", "target"):
            last = parameter.removeprefix("run_").replace("_", "-")
            assert last in text.lower()


def complete(words: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "sinkstream"],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "_SINKSTREAM_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        },
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_a_shell_completes_commands_and_options() -> None:
    assert complete("sinkstream ge") == ["generate"]
    assert set(complete("sinkstream ")) >= set(COMMANDS)
    assert complete("sinkstream generate --temp") == ["--temperature"]
    assert "--window" in complete("sinkstream info --")


def test_a_shell_can_be_told_to_complete(run: Run) -> None:
    outcome = run("--show-completion", "bash")
    if outcome.code == 2:  # older versions of typer detect the shell
        outcome = run("--show-completion")
    assert "_SINKSTREAM_COMPLETE=complete_bash" in outcome.out
    assert modules_after("--version") & {"typer", "shellingham"} == set()


def test_words_without_quotes_have_a_remedy(run: Run) -> None:
    outcome = run("generate", "hi", "there")
    assert outcome.code == 2
    assert outcome.err.endswith("(there). Quote a prompt of several words.\n")


def test_no_command_shows_the_usage_as_it_is(run: Run) -> None:
    outcome = run()
    assert outcome.code == 2
    assert outcome.err.startswith("Usage: sinkstream ")
