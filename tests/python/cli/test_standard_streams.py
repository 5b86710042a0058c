"""Standard streams that are full, closed, or lack characters: one sentence, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import sinkstream
from tests.python.cli.terminal import Terminal
from tests.python.lanes import cases, products

PROGRAM = [sys.executable, "-m", "sinkstream.cli"]
TEXT = "the cat sat on the mat and the dog lay by the door \N{SNOWMAN} "

# Arguments that make each command short. {model} and {text} are files.
COMMANDS = {
    "bench": "bench --rounds 1 -m {model}",
    "chat": "chat {model} -n 5 --seed 3",
    "demo": "demo -m {model} --tokens 9",
    "evaluate": "evaluate {text} -m {model} --window 28",
    "generate": "generate hello -m {model} -n 5",
    "generate-json": "generate hello -m {model} -n 5 --json",
    "info": "info -m {model}",
    "info-json": "info -m {model} --json",
    "models": "models {model}",
    "models-json": "models {model} --json",
    "help": "--help",
    "help-of-a-command": "chat --help",
    "version": "--version",
}
IMPORT_TORCH = {"bench", "evaluate"}
"""Commands whose processes take seconds; one test of each kind is enough in `make test`."""

Shell = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text \N{SNOWMAN}.txt"
    path.write_text(TEXT * 12, encoding="utf-8")
    return path


@pytest.fixture
def shell(checkpoint: str, text_file: Path) -> Shell:
    """Return a function that runs a command as "$@" of a shell script."""

    def call(
        script: str, command: str, *more: str, said: bytes = b"hello\n", **environment: str
    ) -> subprocess.CompletedProcess[bytes]:
        files = {"model": checkpoint, "text": str(text_file)}
        words = [word.format(**files) for word in command.split()]
        return subprocess.run(
            ["sh", "-c", script, "sh", *PROGRAM, *words, *more],
            input=said,
            capture_output=True,
            check=False,
            timeout=60,
            env={**os.environ, **environment},
        )

    return call


# ---- full and closed -----------------------------------------------------------------------------


FULL_OR_CLOSED = [
    ('"$@" >/dev/full', "No space left on device"),
    ('"$@" >&-', "Bad file descriptor"),
]


@pytest.mark.parametrize(
    ("name", "script", "reason"), products(COMMANDS, FULL_OR_CLOSED, together=1)
)
def test_output_that_cannot_be_written_is_one_sentence(
    shell: Shell, name: str, script: str, reason: str
) -> None:
    done = shell(script, COMMANDS[name])
    assert done.returncode == 2
    assert done.stderr.decode() == f"sinkstream: cannot write to standard output: {reason}.\n"


@pytest.mark.parametrize(("name", "target"), products(COMMANDS, [">&-", ">/dev/full"], together=1))
def test_notes_that_cannot_be_written_change_nothing(shell: Shell, name: str, target: str) -> None:
    done = shell(f'"$@" 2{target}', COMMANDS[name])
    assert done.returncode == 0
    assert done.stdout
    assert b"Traceback" not in done.stdout


@pytest.mark.parametrize("target", [">&-", ">/dev/full"], ids=["closed", "full"])
def test_an_error_that_cannot_be_written_keeps_its_exit_code(shell: Shell, target: str) -> None:
    done = shell(f'"$@" 2{target}', "generate hello -m /missing/model.gguf")
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", b"")


def test_all_streams_may_be_closed(shell: Shell) -> None:
    done = shell('"$@" <&- >&- 2>&-', COMMANDS["generate"])
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", b"")


@pytest.mark.parametrize(
    "name",
    cases(
        [name for name in COMMANDS if name != "chat"],
        always=lambda name: name not in IMPORT_TORCH,
    ),
)
def test_no_command_needs_an_input_that_it_does_not_read(shell: Shell, name: str) -> None:
    done = shell('"$@" <&-', COMMANDS[name])
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize(
    ("command", "source"),
    products(
        ["generate - -m {model}", "evaluate - -m {model}"], ["&-", "/proc/self/mem"], together=1
    ),
)
def test_an_input_that_cannot_be_read_is_one_sentence(
    shell: Shell, command: str, source: str
) -> None:
    done = shell(f'"$@" <{source}', command)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"sinkstream: ")
    assert b"standard input" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_file_that_is_opened_never_becomes_standard_output(shell: Shell, tmp_path: Path) -> None:
    """Without a standard output, the next file to be opened would get its number."""
    file = tmp_path / "trace.json"
    done = shell('"$@" >&-', COMMANDS["generate"], "--trace", str(file))
    assert done.returncode == 2
    assert b"hello" not in (file.read_bytes() if file.exists() else b"")


# ---- characters ----------------------------------------------------------------------------------

ENCODINGS = {
    "cp1252": {"PYTHONIOENCODING": "cp1252"},
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "latin-1:strict": {"PYTHONIOENCODING": "latin-1:strict"},
}
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
SNOW = ("-t", "0", "--stop-token-id", "3")


def lossy(text: str, encoding: str) -> bytes:
    return text.encode(encoding, "replace")


@pytest.mark.parametrize("name", ENCODINGS)
def test_text_that_the_encoding_lacks_is_replaced_and_said_once(
    shell: Shell, checkpoint: str, name: str
) -> None:
    command = "generate hello -m {model} -n 60 --seed 3 --ignore-eos -t 3"
    with sinkstream.load(checkpoint) as model:
        text = model.generate(
            [{"role": "user", "content": "hello"}],
            max_tokens=60, seed=3, ignore_eos=True, temperature=3,
        ).text  # fmt: skip
    assert not text.isascii()
    done = shell('"$@"', command, **ENCODINGS[name])
    encoding = name.partition(":")[0]
    assert (done.returncode, done.stdout) == (0, lossy(text + "\n", encoding))
    lost = lossy(text, encoding).decode(encoding) != text
    assert done.stderr.count(b'are written as "?"') == lost
    assert done.stderr.count(b"\n") == lost


def test_events_lose_no_character(shell: Shell) -> None:
    command = "generate hello -m {model} -n 60 --seed 3 --ignore-eos -t 3 --json"
    expected = shell('"$@"', command)
    texts = [json.loads(line).get("text") for line in expected.stdout.splitlines()]
    for name in ENCODINGS:
        done = shell('"$@"', command, **ENCODINGS[name])
        assert (done.returncode, done.stderr) == (0, b"")
        assert [json.loads(line).get("text") for line in done.stdout.splitlines()] == texts


THAT_SHOW_TEXT = [
    "chat {model} -n 60 --seed 3 -t 3",
    "demo -m {model} --tokens 60 -m {model} --prompt \N{SNOWMAN}",
    "evaluate {text} -m {model} --window 28",
    "generate \N{SNOWMAN} -m {model} -n 60 -t 3 --ignore-eos",
]


@pytest.mark.parametrize(("command", "name"), products(THAT_SHOW_TEXT, ENCODINGS, together=1))
def test_no_command_dies_of_a_character(shell: Shell, command: str, name: str) -> None:
    done = shell('"$@"', command, said="\N{SNOWMAN}\n".encode(), **ENCODINGS[name])
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["demo", "evaluate", "generate", "chat"])
def test_a_pipe_gets_utf8_in_any_locale(shell: Shell, name: str) -> None:
    more = {"generate": "-t 3 --seed 3", "demo": "--temperature 3"}
    command = f"{COMMANDS[name]} {more.get(name, '')}".replace("-n 5", "-n 60")
    done = shell('"$@"', command, **C_LOCALE)
    assert (done.returncode, done.stderr) == (0, b"")
    if name in ("generate", "chat"):
        assert done.stdout == shell('"$@"', command).stdout
    done.stdout.decode("utf-8")


def test_a_path_that_is_not_utf8_can_be_shown(
    shell: Shell, checkpoint: str, tmp_path: Path
) -> None:
    folder = tmp_path / os.fsdecode(b"model \xff")
    folder.symlink_to(checkpoint)
    for more in ([], ["--json"], ["--all"]):
        done = shell('"$@"', "info", "-m", str(folder), *more)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
@pytest.mark.parametrize("command", ["generate hello -m {} -n 60 -t 3", "demo -m {} --tokens 60"])
def test_a_terminal_of_any_encoding_gets_the_whole_text(
    checkpoint: str, encoding: str, command: str
) -> None:
    words = command.format(checkpoint).split()
    environment = {"PYTHONIOENCODING": encoding, "TERM": "xterm"}
    with Terminal([*PROGRAM, *words], environment) as terminal:
        code, shown = terminal.end()
    assert code == 0
    assert "Traceback" not in shown
