"""The code of every page runs, and its commands have the flags that it shows.

`make test` runs the first page for newcomers, and each program of the README by itself;
`make test-full` runs all pages.

The ```python blocks of a page are one program, run in an empty folder with the default model. A
block that cannot run here starts with ```python no-run, and the page says why.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from sinkstream.cli.program import COMMANDS, build_app
from tests.python.lanes import cases

ROOT = Path(__file__).parents[3]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
TIMEOUT_S = 120  # several times what the slowest page takes


def fences(page: Path, info: str) -> list[str]:
    """Return the blocks of `page` whose fence has exactly this info string."""
    text = page.read_text(encoding="utf-8")
    pattern = rf"^```{re.escape(info)}\n(.*?)^```$"
    return re.findall(pattern, text, flags=re.DOTALL | re.MULTILINE)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.usefixtures("on_own_processors")
@pytest.mark.parametrize(
    "page",
    cases(
        [page for page in PAGES if fences(page, "python")],
        always=lambda page: page.name == "getting_started.md",
    ),
    ids=name_of,
)
def test_the_code_of_a_page_runs(page: Path, smollm2: Path, tmp_path: Path) -> None:
    program = "\n".join(fences(page, "python"))
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=TIMEOUT_S,
        env={"SINKSTREAM_MODEL": str(smollm2), "PATH": os.environ["PATH"], "HOME": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, ""), program


def test_the_first_programs_of_the_readme_write_text(smollm2: Path, tmp_path: Path) -> None:
    programs = fences(ROOT / "README.md", "python")
    assert len(programs) == 2
    for program in programs:
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            env={"SINKSTREAM_MODEL": str(smollm2)},
        )
        text, _, stats = done.stdout.partition("SessionStats")
        if program is programs[0]:  # its last line shows what the package is for
            assert "evicted_tokens=0" not in stats
            assert "evicted_tokens=" in stats
        words = text.split()
        assert len(words) > 3
        assert sum(word.strip(".,;:!?\"'").isalpha() for word in words) > 0.7 * len(words)


def commands_of(page: Path) -> list[str]:
    """Return the calls of `sinkstream` in shell blocks and in running text."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(?:sh|console)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    calls = []
    for line in lines:
        call = re.search(r"(?:^|\| *|[A-Z_]+=\S+ )(sinkstream .*)", line.removeprefix("$ "))
        if call:
            calls.append(re.split(r"\s(?:#|\||>|<)", call[1])[0])
    # Commands in running text: `sinkstream info --all`.
    calls += [
        call
        for call in re.findall(
            r"`(sinkstream [a-z]+ [^`\n]*)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        )
        if "…" not in call and "..." not in call
    ]
    return calls


def flags_of(name: str) -> set[str]:
    group = typer.main.get_command(build_app([name]))
    params = group.commands[name].params  # type: ignore[attr-defined]
    flags = {flag for param in params for flag in (*param.opts, *param.secondary_opts)}
    return flags | {"--help", "-h"}


@pytest.mark.parametrize("page", [page for page in PAGES if commands_of(page)], ids=name_of)
def test_the_commands_of_a_page_have_the_flags_that_it_shows(page: Path) -> None:
    wrong = []
    for call in commands_of(page):
        name, *words = shlex.split(call)[1:]
        if name.startswith("-"):
            continue
        if name not in COMMANDS:
            wrong.append(f"{call}: there is no command {name!r}")
            continue
        unknown = {word.split("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}
        wrong += [f"{call}: there is no flag {flag}" for flag in unknown - flags_of(name)]
    assert wrong == []
