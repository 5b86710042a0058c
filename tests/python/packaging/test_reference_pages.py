"""The pages that are made from the code are current, and every command and flag has help."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated

import pytest
import typer

from sinkstream.cli import options
from sinkstream.cli.program import COMMANDS, EXIT_CODES

FOLDER = Path(__file__).parents[3] / "docs" / "reference"
MODULES = ("commands", "command_line", "models_and_formats", "make")


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """Import the scripts of docs/reference, and forget their general names afterwards."""
    monkeypatch.syspath_prepend(FOLDER)
    yield {name: importlib.import_module(name) for name in MODULES}
    for name in MODULES:
        del sys.modules[name]


def test_the_pages_are_what_their_script_writes() -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / "make.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_stale_page_is_named(
    scripts: dict[str, ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make = scripts["make"]
    monkeypatch.setattr(make, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "argv", ["make.py"])
    assert make.main() == 0
    (tmp_path / "command_line.md").write_text("old")
    monkeypatch.setattr(sys, "argv", ["make.py", "--check"])
    assert make.main() == 1
    assert capsys.readouterr().out == (
        "docs/reference/command_line.md is stale. Run: python docs/reference/make.py\n"
    )


@options.takes_bundles
def planted(
    name: Annotated[str, typer.Argument()],
    silent: Annotated[bool, typer.Option("--silent", "-s")] = False,
    bare: int = 3,
    good: Annotated[int, typer.Option(help="Good.")] = 3,
    *,
    loading: options.Loading,
) -> int:
    return 0


def test_everything_without_help_is_named(scripts: dict[str, ModuleType]) -> None:
    commands = scripts["commands"]
    assert commands.without_help([commands.read_command("planted", planted)]) == [
        "`sinkstream planted` has no help.",
        "`sinkstream planted`: NAME has no help.",
        "`sinkstream planted`: --silent has no help.",
        "`sinkstream planted`: --bare has no help.",
    ]


def test_every_command_argument_and_flag_has_help(scripts: dict[str, ModuleType]) -> None:
    commands = scripts["commands"]
    assert commands.without_help(commands.all_commands()) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_has_the_flags_that_the_parser_has(
    scripts: dict[str, ModuleType], name: str
) -> None:
    from sinkstream.cli.program import build_app

    parsed = typer.main.get_command(build_app([name])).commands[name].params  # type: ignore[attr-defined]
    command = scripts["commands"].read_command(name, scripts["commands"].function_of(name))
    read = (*command.own, *command.loading, *command.replies)
    spellings = {flag for parameter in read for flag in parameter.spellings}
    assert spellings == {
        flag if flag.startswith("-") else parameter.metavar or flag.upper()
        for parameter in parsed
        for flag in parameter.opts
    }


def test_a_parameter_is_read_as_typer_reads_it(scripts: dict[str, ModuleType]) -> None:
    command_line = scripts["command_line"]
    command = scripts["commands"].read_command("planted", planted)
    assert command.usage == "sinkstream planted [OPTIONS] NAME"
    by_name = {parameter.name: parameter for parameter in (*command.own, *command.loading)}
    assert command_line.item(by_name["good"]) == "- `--good INTEGER`: Good. Default: `3`."
    assert by_name["silent"].spellings == ("-s", "--silent")
    assert command_line.item(by_name["window"]).endswith(
        "Default: the trained length or 4,096, whichever is smaller, minus the sinks."
    )


def test_every_exit_code_is_on_the_page(scripts: dict[str, ModuleType]) -> None:
    page = scripts["command_line"].page()
    assert set(EXIT_CODES) == {0, 1, 2, 130}
    assert all(f"- `{code}`: {meaning}." in page for code, meaning in EXIT_CODES.items())


def test_a_family_says_what_it_has(scripts: dict[str, ModuleType]) -> None:
    switches = scripts["models_and_formats"].switches
    assert switches("llama")["mlp_bias"] == "optional"
    assert switches("qwen2")["qkv_bias"] == "always"
    assert switches("qwen3")["mlp_bias"] == "no"


def test_kernel_tables_are_those_of_the_core(scripts: dict[str, ModuleType]) -> None:
    from sinkstream import _core

    listed = scripts["models_and_formats"].kernel_tables()
    built = [name for name, _ in _core.kernel_tables()]
    assert [name for name in listed if name in built] == built
