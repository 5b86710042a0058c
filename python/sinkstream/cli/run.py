"""`sinkstream run`: a model by its name, for a chat or for one prompt."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from sinkstream.cli import common_options
from sinkstream.cli.chat import chat
from sinkstream.cli.generate import generate


@common_options.takes_bundles
def run(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A GGUF file, a Hugging Face folder, or a name that `sinkstream models` lists.",
        ),
    ],
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="[PROMPT]",
            help='The question; "-" reads standard input. Default: a chat.',
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    *,
    replies: common_options.Replies,
    loading: common_options.Loading,
) -> int:
    """Chat with a model, or get one reply to PROMPT."""
    options = {**asdict(replies), **asdict(loading)}
    if prompt is None:
        return chat(**{**options, "model": model, "sinks": str(loading.sinks)}, system=system)
    return generate(**{**options, "model": model}, prompt=prompt, system=system)
