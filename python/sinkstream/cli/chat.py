"""`sinkstream chat`: a conversation in one session, at a terminal or through a pipe."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, TextIO

import typer

from sinkstream.cli import common_options
from sinkstream.cli.chat_commands import completions
from sinkstream.cli.chat_loop import MOST, Conversations, Talk, note
from sinkstream.cli.common_options import Loading, check_options, load_model, with_model
from sinkstream.errors import InvalidArgument
from sinkstream.files import replace_whole, state_folder
from sinkstream.model import host_of
from sinkstream.request.options import StreamOptions
from sinkstream.sessions.file import read_session_model

try:
    import readline
except ImportError:  # Python was built without it: lines cannot be edited
    readline = None  # type: ignore[assignment]

FAILED = 2

REPLY_TOKENS = 2048
"""The default length of a reply: small models may otherwise repeat themselves without end."""

_KEPT = 1000  # typed lines
_MOST_LINES = 2 * _KEPT  # so that most chats do not rewrite the file


@common_options.takes_bundles
def chat(
    model: common_options.ModelArgument = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    load: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Continue a conversation saved with /save.")
    ] = None,
    no_history: Annotated[
        bool, typer.Option("--no-history", help="Do not save typed lines for the next chat.")
    ] = False,
    model_option: common_options.ModelPath = None,
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
    replies: common_options.Replies,
    loading: common_options.Loading,
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
        talk = Talk(conversations, said, REPLY_TOKENS, host_of(loaded).defaults)
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


def default_path() -> Path | None:
    """Return the path of the history; None if there is no home folder."""
    folder = state_folder()
    return None if folder is None else folder / "sinkstream" / "chat_history"


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


def _completion(word: str, number: int) -> str | None:
    """Return the completion with this number, as readline asks for them one by one."""
    found = completions(readline.get_line_buffer()[: readline.get_endidx()], word)
    return found[number] if number < len(found) else None


class PipedLines:
    """Lines of standard input that is not a terminal: UTF-8, without prompts."""

    def __init__(self) -> None:
        self._count = 0

    def read(self, prompt: str) -> str | None:
        """See `Lines`."""
        line = b"" if sys.stdin is None else sys.stdin.buffer.readline()
        if not line:
            return None
        self._count += 1
        try:
            return line.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise InvalidArgument(
                f"chat: standard input must be UTF-8, but byte {error.start} of line {self._count} "
                "is not."
            ) from None


class TypedLines:
    """Lines of a terminal, with line editing and history if Python has readline."""

    def __init__(self, history: History | None) -> None:
        """Prepare the terminal. Without a history, lines are kept for this chat only."""
        self._history = history
        # Python edits lines only if standard output is a terminal as well.
        self._edits = readline is not None and sys.stdout.isatty()
        if self._edits:
            readline.set_auto_history(False)
            # With this, pasted text of several lines is one entry and waits for Enter. Python turns
            # it off for its own prompt. libedit ignores it.
            readline.parse_and_bind("set enable-bracketed-paste on")
            for entry in history.entries if history else ():
                readline.add_history(entry)
            readline.set_completer_delims(" \t\n")
            readline.set_completer(_completion)
            is_libedit = "libedit" in (readline.__doc__ or "")
            readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")

    def read(self, prompt: str) -> str | None:
        """See `Lines`."""
        try:
            line = self._read(prompt)
        except EOFError:
            return None
        except UnicodeDecodeError as error:
            raise InvalidArgument(
                f"chat: typed text must be {error.encoding}, but byte {error.start} is not."
            ) from None
        if self._edits and line.strip():
            readline.add_history(line)
            if self._history is not None:
                try:
                    self._history.add(line)
                except OSError as error:  # the chat still gets the line
                    print(f"chat: typed lines are no longer saved: {error}", file=sys.stderr)
                    self._history = None
        return line

    def _read(self, prompt: str) -> str:
        if self._edits:
            return input(prompt)
        # input() would write its prompt to standard output, which is not the terminal here.
        sys.stderr.write(prompt)
        sys.stderr.flush()
        return input()


class History:
    """Typed lines, saved between chats in a file that only its owner can read.

    One JSON string per line, because a message may have several lines.

    Lines are appended, so that two simultaneous chats do not lose each other's lines. Once the file
    has twice as many lines as are kept, the next chat replaces it with a shorter one.
    """

    def __init__(self, path: Path) -> None:
        """Open the file at `path`; create it if it does not exist."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = path
        self._file = _open(path)
        self._file.seek(0)
        self.entries: Sequence[str] = self._read()

    def _read(self) -> list[str]:
        lines = self._file.readlines()
        kept = [entry for line in lines[-_KEPT:] if (entry := _entry_of(line)) is not None]
        if len(lines) > _MOST_LINES:
            with replace_whole(self._path, is_private=True) as new:
                new.writelines(f"{json.dumps(entry)}\n".encode() for entry in kept)
            self._file.close()
            self._file = _open(self._path)
        return kept

    def add(self, entry: str) -> None:
        """Append an entry."""
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _open(path: Path) -> TextIO:
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.fchmod(number, 0o600)  # an existing file may have other permissions
    return os.fdopen(number, "a+", encoding="utf-8", errors="replace")


def _entry_of(line: str) -> str | None:
    """Return the entry on a line of the file; None if the line is not a valid entry."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, str) else None
