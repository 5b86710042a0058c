"""`sinkstream chat`: a conversation in one session, at a terminal or through a pipe."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from sinkstream.cli import options
from sinkstream.cli.chat_history import History, default_path
from sinkstream.cli.chat_input import PipedLines, TypedLines
from sinkstream.cli.conversations import MOST, Conversations
from sinkstream.cli.loading import load_model
from sinkstream.cli.talk import Talk, note
from sinkstream.errors import InvalidArgument

FAILED = 2


@options.takes_bundles
def chat(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="Same as --model.")] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    load: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Continue a conversation saved with /save.")
    ] = None,
    no_history: Annotated[
        bool, typer.Option("--no-history", help="Do not save typed lines for the next chat.")
    ] = False,
    model_option: options.ModelPath = None,
    sinks: Annotated[
        str,
        typer.Option(
            metavar="N|system",
            help='Number of first tokens, which always stay in the cache, or "system" for the '
            "whole system prompt.",
        ),
    ] = "4",
    *,
    replies: options.Replies,
    loading: options.Loading,
) -> int:
    """Chat with a model for as long as you like. /help lists the commands."""
    if model is not None and model_option is not None:
        raise InvalidArgument(
            "chat: the model must be given once, but both MODEL and --model are set."
        )
    if system is not None and load is not None:
        raise InvalidArgument(
            "chat: --system must not be given with --load. The saved conversation has its own."
        )
    count = parse_sinks(sinks)
    loading = replace(loading, model=model if model is not None else model_option)
    if count != "system":
        loading = replace(loading, sinks=count)
    is_typed = sys.stdin is not None and sys.stdin.isatty()
    with ExitStack() as stack:
        loaded = stack.enter_context(load_model(loading, max_sequences=MOST))
        conversations = Conversations(loaded, "system" if count == "system" else None, system, load)
        talk = Talk(conversations, replies.as_options())
        if not is_typed:
            return 0 if talk.read_all(PipedLines()) else FAILED
        history = None if no_history else open_history()
        if history is not None:
            stack.callback(history.close)
        session = conversations.current.session
        note(
            f"{Path(loaded.path).name} with {session.sinks:,} sinks and a window of "
            f"{session.window:,} tokens. /help lists the commands; Ctrl-C ends a reply, Ctrl-D "
            "the chat."
        )
        talk.listen(TypedLines(history))
    return 0


def parse_sinks(sinks: str) -> int | Literal["system"]:
    """Return the number of sinks, or "system"."""
    if sinks == "system":
        return "system"
    try:
        return int(sinks)
    except ValueError:
        raise typer.BadParameter(
            f'chat: `--sinks` must be an integer or "system", but is {sinks[:40]!r}.'
        ) from None


def open_history() -> History | None:
    """Return the history of earlier chats. If it cannot be opened, say so and return None."""
    try:
        return History(default_path())
    except OSError as error:
        note(f"Typed lines will not be saved for the next chat: {error}.")
        return None
