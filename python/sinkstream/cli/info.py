"""`sinkstream info`: a model, the memory it takes, and what would make it faster here.

It reads headers only: a model that would not fit, or cannot be loaded, is described as well.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from sinkstream.cli import options
from sinkstream.cli.info_facts import Refused, read_facts
from sinkstream.cli.info_hints import hints
from sinkstream.cli.info_page import WIDTH, Row, details, lay_out, of_refused, summary
from sinkstream.cli.loading import import_loader
from sinkstream.cli.option_checks import with_model
from sinkstream.cli.terminal import is_terminal
from sinkstream.errors import CheckpointError


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
    import_loader()
    facts = read_facts(with_model("info", loading, model, model_option))
    advice = [] if isinstance(facts, Refused) else hints(facts)
    if as_json:
        found = {"refused": [], **asdict(facts), "hints": [asdict(hint) for hint in advice]}
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    elif isinstance(facts, Refused):
        write(of_refused(facts, show_all))
    else:
        write(details(facts, advice) if show_all else summary(facts, advice))
    if isinstance(facts, Refused):
        sys.stdout.flush()
        raise CheckpointError("\n".join(facts.refused))
    return 0


def write(rows: list[Row]) -> None:
    """Write a page, in colors on a terminal, as plain text elsewhere."""
    if not is_terminal(sys.stdout):
        sys.stdout.writelines(f"{line.plain}\n" for line in lay_out(rows))
        return
    console = Console(highlight=False, markup=False, emoji=False)
    for line in lay_out(rows, min(console.width, WIDTH)):
        console.print(line)
