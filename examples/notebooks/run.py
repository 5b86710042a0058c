"""Runs the notebooks of this folder and stores them with their outputs, as the site shows them.

`make notebooks` runs all of them in about a minute, with the default model. Names as arguments run
only those: `python examples/notebooks/run.py quickstart`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
LIMIT = 300_000  # bytes of a stored notebook
SETTINGS = ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")


def run(source: Any) -> Any:
    """Return a notebook with its outputs, executed in a new kernel."""
    notebook = nbformat.from_dict(without_outputs(source))
    NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,  # a text that is printed token by token is one output
        resources={"metadata": {"path": str(FOLDER)}},
    ).execute()
    notebook.metadata = source.metadata  # not the versions of this machine
    return notebook


def without_outputs(notebook: Any) -> Any:
    """Return a copy of a notebook as its author wrote it."""
    copy = nbformat.from_dict(notebook)
    for cell in copy.cells:
        cell.metadata.clear()
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return copy


def complaints(notebook: Any) -> list[str]:
    """Return what would have to change before these outputs can be stored."""
    found = [
        f"cell {cell.id}: {output.get('name', output.output_type)}"
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type == "error" or output.get("name") == "stderr"
    ]
    size = len(nbformat.writes(notebook).encode())
    return [*found, f"{size:,} bytes"] if size > LIMIT else found


def main(names: list[str]) -> int:
    """Run the named notebooks, or all of them."""
    failed = 0
    os.environ.pop("SINKSTREAM_MODEL", None)
    with tempfile.TemporaryDirectory() as settings:
        for variable in SETTINGS:  # not those of the user
            os.environ[variable] = str(Path(settings) / variable)
        for path in sorted(FOLDER.glob("*.ipynb")):
            if names and path.stem not in names:
                continue
            notebook = run(nbformat.read(path, as_version=nbformat.NO_CONVERT))
            wrong = complaints(notebook)
            failed += bool(wrong)
            if not wrong:
                nbformat.write(notebook, path)
            print(f"{path.name}: {', '.join(wrong) or f'{path.stat().st_size:,} bytes'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
