"""`sinkstream models`: a table that fits, and JSON with stable keys."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from sinkstream.checkpoint.stores import ollama, packages
from sinkstream.cli.models import lines
from sinkstream.loading.inventory import ListedModel
from tests.python.checkpoint.gguf_bytes import STRING, GgufBytes, llama_bytes
from tests.python.checkpoint.store_folders import empty_home, write_ollama
from tests.python.cli.conftest import Run
from tests.python.cli.terminal import Terminal

# Programs read these. A key may be added; one that is renamed or removed is a breaking change.
KEYS = ["name", "store", "path", "family", "quantization", "file_bytes", "problem", "loads"]


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(ollama, "_SERVICE", tmp_path / "service")
    monkeypatch.setattr(packages, "PACKAGES", {})
    return empty_home(monkeypatch, tmp_path / "home")


@pytest.fixture
def root(home: Path) -> Path:
    root = home / ".ollama" / "models"
    write_ollama(root)
    other = GgufBytes().add("general.architecture", STRING, "gemma4").build()
    write_ollama(root, "registry.ollama.ai/library/gemma4/1b", content=other)
    return root


def test_it_lists_models_and_why_one_does_not_load(run: Run, root: Path) -> None:
    outcome = run("models")
    assert outcome.code == 0
    title, gemma, *reason, llama, count = outcome.out.splitlines()
    assert title.split() == ["name", "family", "type", "size", "loads"]
    assert gemma.split()[:2] == ["ollama:gemma4:1b", "gemma4"]
    assert gemma.endswith("no")
    assert 'has architecture "gemma4", which has heads' in " ".join(map(str.strip, reason))
    assert llama.split()[:3] == ["ollama:llama3.2", "llama", "F32"]
    assert llama.endswith("yes")
    assert count == "1 of 2 models can be loaded."


def test_a_listed_name_is_one_that_every_command_takes(run: Run, root: Path) -> None:
    for command in (["info", "-m"], ["generate", "hello", "-n", "1", "-m"]):
        outcome = run(*command, "ollama:gemma4:1b")
        assert outcome.code == 2
        assert 'has architecture "gemma4"' in outcome.err
    outcome = run("generate", "hello", "-m", "ollama:lama3.2")
    assert outcome.err.endswith('Did you mean "ollama:llama3.2"?\n')


def test_what_is_not_in_the_cache_names_the_flag(run: Run, home: Path) -> None:
    outcome = run("generate", "hello", "-m", "org/name")
    assert outcome.err.endswith("Set `--download` to fetch it from the hub.\n")
    outcome = run("generate", "hello", "-m", "/gone", "--download")
    assert (
        "`--download` must be False unless the model is named `org/name`, as on the hub"
        in outcome.err
    )


def test_json_has_stable_keys(run: Run, root: Path) -> None:
    rows = json.loads(run("models", "--json").out)["models"]
    assert [list(row) for row in rows] == [KEYS, KEYS]
    assert [row["loads"] for row in rows] == [False, True]
    assert rows[0]["problem"].startswith("load: sha256-")


def test_no_models_is_a_sentence(run: Run, home: Path) -> None:
    assert run("models").out == "No models found. `sinkstream models FOLDER` searches a folder.\n"
    assert json.loads(run("models", "--json").out) == {"models": []}


def test_a_folder_that_does_not_exist_is_one_sentence(run: Run, home: Path) -> None:
    outcome = run("models", "/no/such")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_reasons_are_cut_and_wrapped(width: int) -> None:
    problem = "load: m.gguf " + "is no good because of this, " * 30 + "\n  and that"
    odd = ListedModel("模型\x1b[31m\udcff", "folder", None, None, None, None, problem)
    good = ListedModel("m", "folder", "/m", "llama", "Q4_K_M", 4_600_000_000, None)
    title, first, *reason, second, count = lines([odd, good], width)
    assert max(cell_len(line) for line in reason) <= width
    assert sum(map(len, reason)) < 300
    assert all(line.startswith("    ") and line.isprintable() for line in reason)
    assert first.isprintable()
    assert second.split() == ["m", "llama", "Q4_K_M", "4.6", "GB", "yes"]
    assert count == "1 of 2 models can be loaded."
    assert cell_len(second) == title.index("loads") + 3


def test_of_several_faults_the_first_is_shown() -> None:
    problem = "load: m.gguf is wrong in 3 places:\n  a is missing\n  b is missing\n  and 1 more"
    row = ListedModel("m", "folder", "/m", "llama", "Q4_0", 1, problem)
    assert "    m.gguf is wrong in 3 places: a is missing …" in lines([row], 80)


def test_many_models_show_a_bar_on_a_terminal(home: Path, tmp_path: Path) -> None:
    content = llama_bytes().build()
    for number in range(50):
        (tmp_path / f"{number}.gguf").write_bytes(content)
    command = [sys.executable, "-m", "sinkstream.cli", "models", str(tmp_path)]
    with Terminal(command, {"TERM": "xterm-256color", "COLUMNS": "200"}) as terminal:
        code, text = terminal.end()
    assert code == 0
    assert "Reading headers" in text
    assert re.search(r"5[01] of 5[01] models can be loaded", text)  # with SmolLM2, if it is there
