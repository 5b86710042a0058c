"""`sinkstream info`: a model, the memory it takes, and what would make it faster here."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from sinkstream.cli import options
from sinkstream.cli.info_facts import collect
from sinkstream.cli.info_hints import hints
from sinkstream.cli.info_page import WIDTH, Row, details, lay_out, summary
from sinkstream.cli.loading import load_model
from sinkstream.cli.option_checks import with_model
from sinkstream.cli.terminal import is_terminal


@options.takes_bundles
def info(
    model: options.ModelArgument = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show everything, such as the kernel of each operation.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write everything as one JSON object.")
    ] = False,
    model_option: options.ModelPath = None,
    *,
    loading: options.Loading,
) -> int:
    """Show the model, the memory it takes, and what would make it faster on this machine."""
    with load_model(with_model("info", loading, model, model_option)) as loaded:
        facts = collect(loaded)
    advice = hints(facts)
    if as_json:
        found = {**asdict(facts), "hints": [asdict(hint) for hint in advice]}
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        write(details(facts, advice) if show_all else summary(facts, advice))
    return 0


def write(rows: list[Row]) -> None:
    """Write a page, in colors on a terminal, as plain text elsewhere."""
    if not is_terminal(sys.stdout):
        sys.stdout.writelines(f"{line.plain}\n" for line in lay_out(rows))
        return
    console = Console(highlight=False, markup=False, emoji=False)
    for line in lay_out(rows, min(console.width, WIDTH)):
        console.print(line)
