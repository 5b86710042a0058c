"""`sinkstream models`: the models on this machine, and whether each can be loaded."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.cells import cell_len
from rich.filesize import decimal

from sinkstream.cli import common_options
from sinkstream.cli.terminal import printable, progress_bar, width_of
from sinkstream.loading.inventory import ListedModel, list_models

_TITLES = ("name", "family", "type", "size", "loads")
_GAP, _INDENT = 2, 4
_MAX_PROBLEM = 200  # characters; `sinkstream info` shows all of it
_FILE_WIDTH, _LEAST_WIDTH = 100, 40


@common_options.takes_bundles
def models(
    folders: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FOLDER...",
            help="Folders to search, in addition to those of Ollama, LM Studio, the Hugging Face "
            "cache, and $SINKSTREAM_MODELS.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object.")] = False,
) -> int:
    """List the models on this machine, and whether each can be loaded."""
    with progress_bar("Reading headers") as show:
        found = list_models(*(folders or ()), progress=show)
    if as_json:
        rows = [{**asdict(model), "loads": model.loads} for model in found]
        sys.stdout.write(json.dumps({"models": rows}, indent=2) + "\n")
        return 0
    width = max(_LEAST_WIDTH, width_of(sys.stdout) or _FILE_WIDTH)
    sys.stdout.writelines(f"{line}\n" for line in lines(found, width))
    return 0


def lines(found: Sequence[ListedModel], width: int) -> Iterator[str]:
    """Yield the table: a line for each model, and below it why it does not load."""
    if not found:
        yield "No models found. `sinkstream models FOLDER` searches a folder."
        return
    cells = [_TITLES, *map(_cells, found)]
    widths = [max(cell_len(row[i]) for row in cells) + _GAP for i in range(len(_TITLES))]
    for row, model in zip(cells, [None, *found], strict=True):
        padded = (
            cell + " " * (room - cell_len(cell)) for cell, room in zip(row, widths, strict=True)
        )
        yield "".join(padded).rstrip()
        if model is not None and model.problem is not None:
            yield from textwrap.wrap(
                _shortened(model.problem),
                width,
                initial_indent=" " * _INDENT,
                subsequent_indent=" " * _INDENT,
                break_on_hyphens=False,
            )
    loading = sum(model.loads for model in found)
    yield f"{loading} of {len(found)} {'model' if len(found) == 1 else 'models'} can be loaded."


def _cells(model: ListedModel) -> tuple[str, ...]:
    size = "" if model.file_bytes is None else decimal(model.file_bytes)
    cells = (model.name, model.family or "", model.quantization or "", size)
    return (*(_one_line(cell) for cell in cells), "yes" if model.loads else "no")


def _shortened(problem: str) -> str:
    """Return the first of the faults that a problem lists, one in a line, and cut no word."""
    first, *others = problem.removeprefix("load: ").splitlines()
    if others:
        first = f"{first} {others[0].strip()}" + (" …" if others[1:] else "")
    return textwrap.shorten(_one_line(first), _MAX_PROBLEM, placeholder=" …")


def _one_line(text: str) -> str:
    shown = text.encode("utf-8", errors="replace").decode("utf-8")
    return " ".join(printable(shown).split())
