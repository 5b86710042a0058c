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
from sinkstream.cli.option_checks import check_options, with_model
from sinkstream.cli.options import Loading
from sinkstream.cli.talk import Talk, note
from sinkstream.errors import InvalidArgument
from sinkstream.request.options import StreamOptions
from sinkstream.sessions.file import read_session_model

FAILED = 2

REPLY_TOKENS = 2048
"""The default length of a reply: small models may otherwise repeat themselves without end."""


@options.takes_bundles
def chat(
    model: options.ModelArgument = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    load: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Continue a conversation saved with /save.")
    ] = None,
    no_history: Annotated[
        bool, typer.Option("--no-history", help="Do not save typed lines for the next chat.")
    ] = False,
    model_option: options.ModelPath = None,
    sinks: Annotated[
        str | None,
        typer.Option(
            metavar="N|system",
            help="Number of tokens at the start of the text that always stay in the cache, or "
            '"system" for the whole system prompt. Default: 4.',
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            "-n",
            help=f"Maximum tokens per reply. Default: {REPLY_TOKENS:,}.",
        ),
    ] = None,
    *,
    replies: options.Replies,
    loading: options.Loading,
) -> int:
    """Chat with a model for as long as you like. /help lists the commands."""
    loading = with_model("chat", loading, model, model_option)
    said: StreamOptions = {**replies.as_options(), "max_tokens": max_tokens}
    check_options("chat", said)
    if system is not None and load is not None:
        raise InvalidArgument(
            "chat: --system must not be given with --load. The saved conversation has its own."
        )
    count = None if sinks is None else parse_sinks(sinks)
    if isinstance(count, int):
        loading = replace(loading, sinks=count)
    if load is not None:
        loading = with_settings_of(load, loading, has_sinks=isinstance(count, int))
    is_typed = sys.stdin is not None and sys.stdin.isatty()
    with ExitStack() as stack:
        loaded = stack.enter_context(load_model(loading, max_sequences=MOST))
        conversations = Conversations(loaded, "system" if count == "system" else None, system, load)
        talk = Talk(conversations, said, REPLY_TOKENS)
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
        if load is not None:
            talk.show_last_exchange()
        talk.listen(TypedLines(history))
    return 0


def with_settings_of(file: Path, loading: Loading, *, has_sinks: bool) -> Loading:
    """Return the loading options that a saved conversation needs, unless a flag says otherwise."""
    saved = read_session_model(file)
    return replace(
        loading,
        sinks=loading.sinks if has_sinks else saved.sinks,
        window=saved.window if loading.window is None else loading.window,
        kv_dtype=saved.kv_dtype if loading.kv_dtype == "auto" else loading.kv_dtype,
    )


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
    path = default_path()
    if path is None:
        note(
            "Typed lines will not be saved for the next chat: there is no home folder. "
            "Set XDG_STATE_HOME to save them elsewhere."
        )
        return None
    try:
        return History(path)
    except OSError as error:
        note(f"Typed lines will not be saved for the next chat: {error}.")
        return None
