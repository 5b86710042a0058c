"""The pages that are made from the code are current, and every command and flag has help."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Annotated, Literal

import pytest
import typer

from sinkstream import Capacity, DecoderSpec, RopeSpec
from sinkstream.checkpoint.families import FAMILIES
from sinkstream.cli import common_options
from sinkstream.cli.program import COMMANDS, EXIT_CODES

FOLDER = Path(__file__).parents[3] / "docs" / "reference"
MODULES = (
    "commands", "command_line", "docstring", "http_api", "models_and_formats", "python_api", "make",
)  # fmt: skip


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """Import the scripts of docs/reference, and forget their general names afterwards."""
    monkeypatch.syspath_prepend(FOLDER)
    yield {name: importlib.import_module(name) for name in MODULES}
    for name in MODULES:
        del sys.modules[name]


def test_the_pages_are_what_their_script_writes(
    scripts: dict[str, ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["make.py", "--check"])
    assert (scripts["make"].main(), capsys.readouterr().out) == (0, "")


def test_a_stale_page_is_named(
    scripts: dict[str, ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make = scripts["make"]
    monkeypatch.setattr(make, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "argv", ["make.py"])
    (tmp_path / "python_api").mkdir()
    assert make.main() == 0
    (tmp_path / "command_line.md").write_text("old", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["make.py", "--check"])
    assert make.main() == 1
    assert capsys.readouterr().out == (
        "docs/reference/command_line.md is stale. Run: python docs/reference/make.py\n"
    )


@common_options.takes_bundles
def planted(
    name: Annotated[str, typer.Argument()],
    silent: Annotated[bool, typer.Option("--silent", "-s")] = False,
    bare: int = 3,
    good: Annotated[int, typer.Option(help="Good.")] = 3,
    *,
    loading: common_options.Loading,
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


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_names_values_as_the_page_does(scripts: dict[str, ModuleType], name: str) -> None:
    from sinkstream.cli.program import build_app

    parsed = typer.main.get_command(build_app([name])).commands[name].params  # type: ignore[attr-defined]
    command = scripts["commands"].read_command(name, scripts["commands"].function_of(name))
    found = {entry.name: entry.metavar for entry in parsed if entry.opts[0].startswith("-")}
    for entry in (*command.flags, *command.loading, *command.replies):
        assert (found[entry.name] or "") == entry.metavar


def test_a_parameter_is_read_as_typer_reads_it(scripts: dict[str, ModuleType]) -> None:
    command_line = scripts["command_line"]
    command = scripts["commands"].read_command("planted", planted)
    assert command.usage == "sinkstream planted [OPTIONS] NAME"
    by_name = {parameter.name: parameter for parameter in (*command.own, *command.loading)}
    assert command_line.item(by_name["good"]) == "- `--good INTEGER`: Good. Default: `3`."
    assert by_name["silent"].spellings == ("-s", "--silent")
    assert command_line.item(by_name["window"]).endswith(
        "Default: the trained length minus the sinks; half of it, a quarter and so on if memory is "
        "short."
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('such as "https://chat.example". More', "such as `https://chat.example`. More"),
        ("or postgresql://user@host/db for", "or `postgresql://user@host/db` for"),
        ("a folder, or s3://bucket/path.", "a folder, or `s3://bucket/path`."),
        ("saved with /save, --load or $X", "saved with `/save`, `--load` or `$X`"),
        ('"none" keeps none', "`none` keeps none"),
        ("no page at /; ~/.local/state", "no page at /; ~/.local/state"),
    ],
)
def test_values_of_a_help_are_code(
    scripts: dict[str, ModuleType], text: str, expected: str
) -> None:
    assert scripts["command_line"].marked(text) == expected


def test_an_empty_default_is_not_shown(scripts: dict[str, ModuleType]) -> None:
    assert scripts["command_line"].shown("") == ""


def test_every_exit_code_is_on_the_page(scripts: dict[str, ModuleType]) -> None:
    page = scripts["command_line"].page()
    assert set(EXIT_CODES) == {0, 1, 2, 130, 143}
    assert all(f"- `{code}`: {meaning}." in page for code, meaning in EXIT_CODES.items())


def test_a_family_says_what_it_has(scripts: dict[str, ModuleType]) -> None:
    parts = scripts["models_and_formats"].parts
    assert parts("llama")["bias of MLP"] == "optional"
    assert parts("qwen2")["bias of q, k, v"] == "always"
    assert parts("qwen3")["bias of MLP"] == ""
    assert parts("llama")["windows"] == ""
    assert parts("phi3")["windows"] == "optional, all layers"
    assert parts("gemma3_text")["windows"] == "5 of 6 layers"
    assert parts("smollm3")["rotary pairing"] == "NeoX, 3 of 4 layers"
    assert parts("glm4")["rotary pairing"] == "interleaved (GPT-J), 1/2 of each head"
    assert parts("olmo2")["norms"] == "RMS, after"
    assert parts("granite")["scaled"] == "embedding, residuals, logits"


def test_a_family_says_what_its_written_files_can_have(scripts: dict[str, ModuleType]) -> None:
    module = scripts["models_and_formats"]

    def of(name: str) -> dict[str, str]:
        cells: dict[str, str] = module.parts_of_file(name, FAMILIES[name].written)
        return cells

    assert of("gemma2")["windows"] == of("olmo3")["windows"] == of("starcoder2")["windows"] == "yes"
    assert of("exaone4")["windows"] == "in models of 64 layers"
    assert of("mistral")["windows"] == of("olmo2")["windows"] == of("smollm3")["windows"] == ""
    assert of("phi3")["other rotary schemes"] == "`longrope`"
    biases = {
        name: of(name)["biases of output and MLP"] for name in ("gpt_neox", "llama", "mistral")
    }
    assert biases == {"gpt_neox": "required", "llama": "optional", "mistral": ""}
    output = {name: of(name)["output matrix"] for name in ("gemma2", "llama", "olmo3")}
    assert output == {"gemma2": "", "llama": "optional", "olmo3": "required"}


def test_kernel_tables_are_those_of_the_core(scripts: dict[str, ModuleType]) -> None:
    from sinkstream import _core

    listed = scripts["models_and_formats"].kernel_tables()
    built = [name for name, _ in _core.kernel_tables()]
    assert [name for name in listed if name in built] == built


class Shown:
    """Show a class.

    Text with `code`, a *star and snake_case,
    in two lines.

    Args:
        size: How long; or
            longer.
        *rest: More.

    Later text.

    Warns:
        UserWarning: Often.

    Example:
        >>> Shown(3)
    """

    async def wait(self, name: str = "a", *, most: Literal["x"] = "x") -> Mapping[str, int]:
        """Wait."""
        return {}

    @property
    def size(self) -> int:
        """Return the size."""
        return 3


@dataclass
class Fields:
    """Has fields."""

    size: int
    """How
    long."""
    name: str = "x"


def test_docstrings_become_markdown(scripts: dict[str, ModuleType]) -> None:
    lines = "\n".join(scripts["python_api"].class_of("Shown", Shown)).split("\n")
    assert [line for line in lines if line] == [
        "Show a class.",
        "Text with `code`, a \\*star and snake_case, in two lines.",
        "**Arguments**",
        "- `size`: How long; or longer.",
        "- `*rest`: More.",
        "Later text.",
        "**Warns**",
        "- `UserWarning`: Often.",
        "**Example**",
        *("```pycon", ">>> Shown(3)", "```"),
        "### Shown.wait",
        "```py",
        'async Shown.wait(name: str = "a", *, most: Literal["x"] = "x") -> Mapping[str, int]',
        "```",
        "Wait.",
        "### Shown.size",
        *("```py", "Shown.size: int", "```"),
        "Return the size.",
    ]


def test_fields_have_the_strings_that_follow_them(scripts: dict[str, ModuleType]) -> None:
    lines = list(scripts["python_api"].class_of("Fields", Fields))
    assert lines[-2:] == ["- `size: int`: How long.", '- `name: str = "x"`']


def test_a_public_name_that_is_on_no_page_is_named(
    scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    python_api = scripts["python_api"]
    without = replace(python_api.PAGES["caches"], names=())
    monkeypatch.setitem(python_api.PAGES, "caches", without)
    with pytest.raises(ValueError, match=r"python_api\.py lacks Cache\.$"):
        python_api.page(without)


@pytest.mark.parametrize("kind", [Capacity, DecoderSpec, RopeSpec])
def test_every_field_of_a_loaded_model_is_described(
    scripts: dict[str, ModuleType], kind: type
) -> None:
    rows = scripts["python_api"].field_rows(kind)
    assert [row.name for row in rows if not row.text] == []


def test_the_site_needs_no_package_but_sphinx() -> None:
    """`make docs` compiles nothing, and needs nothing of the tests."""
    program = (
        "import runpy, sys\n"
        "sys.modules['sinkstream'] = sys.modules['torch'] = sys.modules['transformers'] = None\n"
        f"runpy.run_path({str(FOLDER.parent / 'conf.py')!r})\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_keys_of_a_typed_dictionary_are_on_its_page(scripts: dict[str, ModuleType]) -> None:
    from sinkstream.tinychat import Usage

    rows = scripts["python_api"].field_rows(Usage)
    assert [row.name for row in rows] == ["prompt_tokens", "completion_tokens", "total_tokens"]
    assert {row.kind for row in rows} == {"int"}
    assert rows[2].text == "Their sum."


def test_a_field_without_description_is_named(
    scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sinkstream.server import request_bodies

    monkeypatch.delitem(request_bodies.FIELDS, "include_usage")
    monkeypatch.delitem(request_bodies.FIELDS, "echo")
    with pytest.raises(ValueError, match="has no description") as error:
        scripts["http_api"].page()
    assert "POST /v1/completions: echo has no description" in str(error.value).splitlines()
    named = "POST /v1/chat/completions: stream_options.include_usage has no description"
    assert named in str(error.value).splitlines()


def test_every_description_is_of_a_field(scripts: dict[str, ModuleType]) -> None:
    from sinkstream.server import request_bodies

    used: set[str | None] = set()
    for methods in scripts["http_api"].document()["paths"].values():
        for operation in methods.values():
            body = scripts["http_api"].body_of(operation)
            used |= {schema["description"] for _, schema, _ in scripts["http_api"].fields(body)}
    unused = [name for name, text in request_bodies.FIELDS.items() if text not in used]
    assert unused == []
