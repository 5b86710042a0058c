"""The notebooks run in a clean kernel as readers run them, and are stored with their outputs."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[3] / "examples" / "notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
LIMIT = 300_000  # bytes of a stored notebook, pictures included
FIGURES = {"eviction": 3, "long_chat": 1, "many_streams": 1, "quickstart": 0}
# What a reader has in addition to sinkstream: numpy comes with it, IPython with any kernel.
IMPORTABLE = {"IPython", "matplotlib", "numpy", "sinkstream", *sys.stdlib_module_names}

every_notebook = pytest.mark.parametrize("name", NOTEBOOKS)


def read(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=nbformat.NO_CONVERT)


def code_of(name: str) -> list[Any]:
    return [cell for cell in read(name).cells if cell.cell_type == "code"]


@pytest.fixture
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_own_processors: None) -> None:
    """Keep the user's settings, start-up files and kernel lists out of the kernels."""
    pytest.importorskip("matplotlib.font_manager")  # or its first-run messages would be outputs
    for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))


def run(
    name: str, model: Path, monkeypatch: pytest.MonkeyPatch, folder: Path = FOLDER
) -> list[Any]:
    """Run a notebook in a folder, usually its own; return the outputs of its cells."""
    monkeypatch.setenv("SINKSTREAM_MODEL", str(model))
    notebook = read(name)
    NotebookClient(
        notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    return [
        output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    ]


def printed(outputs: list[Any], stream: str = "stdout") -> str:
    return "".join(output.text for output in outputs if output.get("name") == stream)


def shows(source: str) -> bool:
    """Tell whether a cell prints, displays, plots, or ends in a value."""
    last = ast.parse(source, mode="exec").body[-1]
    calls = isinstance(last, ast.Expr) and isinstance(last.value, ast.Call)
    value = isinstance(last, ast.Expr) and not calls
    return (
        value or re.search(r"^(?: {4})*(?:print|plt\.show)\(|\bdisplay\(", source, re.M) is not None
    )


def paths(text: str) -> list[str]:
    """Return the absolute paths in a text, and those below a home folder."""
    return re.findall(r"(?:(?<![\w<.])/|~/|\b[A-Z]:\\)[\w.-]+(?:[/\\][\w.-]+)*", text)


def check_run(name: str, outputs: list[Any]) -> None:
    """Check what every notebook must do with any model."""
    assert [output for output in outputs if output.output_type == "error"] == []
    assert printed(outputs, "stderr") == ""
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == FIGURES[name]


def test_there_are_the_notebooks_that_the_tests_know() -> None:
    assert sorted(FIGURES) == NOTEBOOKS


# ---- as they are stored --------------------------------------------------------------------------


@every_notebook
def test_a_notebook_is_stored_as_one_run_of_all_its_cells(name: str) -> None:
    cells = code_of(name)
    assert cells
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    check_run(name, [output for cell in cells for output in cell.outputs])
    assert (FOLDER / f"{name}.ipynb").stat().st_size < LIMIT


@every_notebook
def test_every_cell_that_shows_something_is_stored_with_it(name: str) -> None:
    cells = code_of(name)
    assert [cell.id for cell in cells if shows(cell.source) and not cell.outputs] == []
    assert sum(bool(cell.outputs) for cell in cells) > len(cells) / 2


@every_notebook
def test_stored_outputs_tell_nothing_of_the_machine_and_can_be_read_as_text(name: str) -> None:
    for cell in code_of(name):
        for output in cell.outputs:
            parts = output.get("data", {"text/plain": output.get("text")})
            assert "text/plain" in parts, cell.id
            assert set(parts) <= {"text/plain", "text/html", "image/png"}, cell.id
            for kind in {"text/plain", "text/html"} & set(parts):
                assert paths(parts[kind]) == [], cell.id


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/someone/model.gguf", ["/home/someone/model.gguf"]),
        ("<Model from '/tmp/x'>", ["/tmp/x"]),
        ("in /usr/lib/python3/site-packages/a.py:", ["/usr/lib/python3/site-packages/a.py"]),
        ("~/models/a", ["~/models/a"]),
        ("C:\\Users\\me", ["C:\\Users\\me"]),
        ("54 tokens/s, 1/2, and/or, </div>, <hr/>", []),
    ],
)
def test_a_path_of_a_machine_is_found(text: str, expected: list[str]) -> None:
    assert paths(text) == expected


@every_notebook
def test_a_notebook_is_valid_and_its_cells_have_names_that_stay(name: str) -> None:
    notebook = read(name)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    # Editors generate eight random hexadecimal digits for each split or pasted cell.
    assert [id_ for id_ in ids if not re.fullmatch("[a-z]+(-[a-z]+)*", id_)] == []
    assert [cell.id for cell in notebook.cells if cell.metadata] == []


@every_notebook
def test_a_notebook_imports_only_what_its_reader_has(name: str) -> None:
    imported = set()
    for cell in code_of(name):
        for node in ast.walk(ast.parse(cell.source)):  # plain Python: no magics, no shell
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(str(node.module).partition(".")[0])
    assert "sinkstream" in imported
    assert imported - IMPORTABLE == set()


@every_notebook
def test_every_link_of_a_notebook_leads_to_a_file(name: str) -> None:
    prose = "".join(cell.source for cell in read(name).cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\((?!https://)([^)#]+)[^)]*\)", prose)
    assert [link for link in links if not (FOLDER / link).exists()] == []


# ---- as they run ---------------------------------------------------------------------------------


@every_notebook
@pytest.mark.usefixtures("own_settings")
def test_a_notebook_runs_in_any_folder_with_any_model_that_its_reader_names(
    name: str, tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_run(name, run(name, tiny_folder("llama"), monkeypatch, tmp_path))


def test_one_notebook_reads_a_file_that_its_reader_may_not_have() -> None:
    sources = {name: "".join(cell.source for cell in code_of(name)) for name in NOTEBOOKS}
    assert [name for name, source in sources.items() if "../" in source] == ["eviction"]


# SmolLM2 runs each in its own folder, where the file is.


@pytest.mark.full
@pytest.mark.usefixtures("own_settings")
def test_the_quickstart_writes_text_and_counts_what_it_forgot(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = run("quickstart", smollm2, monkeypatch)
    check_run("quickstart", outputs)
    text = printed(outputs)
    words = text.split()
    assert sum(word.strip(".,;:!?\"'").isalpha() for word in words) > 0.6 * len(words)
    # 4 + 400 tokens, the last of them not read, through a capacity of 128.
    assert "128 live, 275 evicted\n275 evicted, counted" in text


@pytest.mark.full
@pytest.mark.usefixtures("own_settings")
def test_the_long_chat_keeps_its_system_prompt_and_goes_on_from_its_file(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = run("long_chat", smollm2, monkeypatch)
    check_run("long_chat", outputs)
    text = printed(outputs)
    rows = re.findall(r"^ +\d+ +\d+ +\d+ +([\d,]+) +([\d,]+) +([\d,]+) +\d+ ms$", text, re.M)
    counts = [[int(field.replace(",", "")) for field in row] for row in rows]
    assert len(counts) == 10
    assert all(live == min(256, seen) == seen - evicted for seen, live, evicted in counts)
    assert counts[-1][2] > 256  # far past the window
    assert re.findall("system prompt live: (True|False)", text) == ["True", "False"]
    assert "As before: True" in text
    assert "the turn began and cannot be restored" in text
    assert "The same tokens: True\nThe same reply: True" in text


@pytest.mark.full
@pytest.mark.usefixtures("own_settings")
def test_many_streams_are_shown_while_they_write(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = run("many_streams", smollm2, monkeypatch)
    check_run("many_streams", outputs)
    (columns,) = [
        output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})
    ]
    assert columns.count("<hr>80 tokens") == 4
    assert columns.count("<div") == columns.count("</div>") == 5
    rates = re.findall(r"(\d+) streams: +([\d.]+) tokens/s in total", printed(outputs))
    assert [int(batch) for batch, _ in rates] == [1, 2, 4, 8, 16]
    assert re.search(r"^(\d+) of \1 pages of the cache are free again$", printed(outputs), re.M)


@pytest.mark.full
@pytest.mark.usefixtures("own_settings")
def test_the_pictures_of_eviction_show_what_they_say(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = run("eviction", smollm2, monkeypatch)
    check_run("eviction", outputs)
    text = printed(outputs)
    found = re.findall(r"^(4 sinks|plain window) .*? ([\d.]+)$", text, re.M)
    values = {name: float(value) for name, value in found}
    assert values["plain window"] > 1.3 * values["4 sinks"]
    # `latency_bench.py` measures latencies; here other programs share the cores.
    assert len([ms for ms in re.findall(r"([\d.]+) ms$", text, re.M) if float(ms) > 0]) == 3
