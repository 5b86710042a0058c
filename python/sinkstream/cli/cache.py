"""`sinkstream cache`: the packed weights that are kept for later loads, and their removal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from rich.cells import cell_len
from rich.filesize import decimal

from sinkstream.checkpoint.quoting import quoted
from sinkstream.cli import common_options
from sinkstream.cli.terminal import printable
from sinkstream.errors import InvalidArgument
from sinkstream.loading.panels import (
    FOLDER_VARIABLE,
    Kept,
    default_folder,
    kept_files,
    limit_bytes,
    remove,
)

_TITLES = ("key", "size", "used", "model")
_KEY = 8  # characters
_GAP = 2
_UNITS = (("day", 86400), ("hour", 3600), ("minute", 60))


@common_options.takes_bundles
def cache(
    remove_named: Annotated[
        list[str] | None,
        typer.Option(
            "--remove",
            metavar="KEY",
            help="Remove the file whose key begins like this, or all files of the model of this "
            "name. May be repeated.",
        ),
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove all files.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object.")] = False,
) -> int:
    """List the packed weights that later loads map, or remove some."""
    folder = default_folder()
    kept = [] if folder is None else kept_files(folder)
    chosen = kept if clear else list(_named(kept, remove_named or ()))
    for each in chosen:
        remove(each.path)
    left = [each for each in kept if each not in chosen]
    if as_json:
        rows = [_as_json(each) for each in left]
        found = {"folder": None if folder is None else str(folder), "limit_bytes": limit_bytes()}
        sys.stdout.write(json.dumps({**found, "files": rows}, indent=2) + "\n")
        return 0
    sys.stdout.writelines(f"{line}\n" for line in _lines(left))
    if chosen:
        size = decimal(sum(each.bytes for each in chosen))
        sys.stdout.write(f"Removed {_files(len(chosen))}, {size}.\n")
    if left:
        size, most = decimal(sum(each.bytes for each in left)), decimal(limit_bytes())
        sys.stdout.write(f"{_files(len(left))}, {size} of at most {most}, in {folder}.\n")
    elif folder is None:
        sys.stdout.write(f"Packed weights are not kept: ${FOLDER_VARIABLE} is empty.\n")
    elif not chosen:
        sys.stdout.write(f"No packed weights in {folder}.\n")
    return 0


def _named(kept: Sequence[Kept], names: Sequence[str]) -> Iterator[Kept]:
    for name in names:
        found = [each for each in kept if name and (each.key.startswith(name) or each.name == name)]
        if not found:
            raise InvalidArgument(
                f"cache: `--remove` must be the key or the name of a file that `sinkstream cache` "
                f"lists, but is {quoted(name)}.",
                param="remove",
            )
        yield from found


def _lines(kept: Sequence[Kept]) -> Iterator[str]:
    """Yield the table, the file used last first."""
    cells = [_TITLES, *map(_cells, kept)] if kept else []
    widths = [
        max(cell_len(row[i]) for row in cells) + _GAP for i in range(len(_TITLES) if cells else 0)
    ]
    for row in cells:
        padded = (
            cell + " " * (room - cell_len(cell)) for cell, room in zip(row, widths, strict=True)
        )
        yield "".join(padded).rstrip()


def _cells(kept: Kept) -> tuple[str, ...]:
    rounded = f" as {kept.quantize}" if kept.quantize else ""
    name = printable(kept.name).replace("\n", " ") or "of another version, or damaged"
    return kept.key[:_KEY], decimal(kept.bytes), _ago(time.time() - kept.last_used), name + rounded


def _ago(seconds: float) -> str:
    for unit, size in _UNITS:
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "now"


def _as_json(kept: Kept) -> dict[str, object]:
    return {
        "key": kept.key,
        "path": str(kept.path),
        "bytes": kept.bytes,
        "last_used": kept.last_used,
        "name": kept.name or None,
        "source": kept.source or None,
        "quantize": kept.quantize,
    }


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"
