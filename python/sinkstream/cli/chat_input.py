"""Sources of a chat's lines: a terminal, or a pipe."""

from __future__ import annotations

import sys
from typing import Protocol

from sinkstream.cli.chat_commands import split_ending
from sinkstream.cli.chat_completion import completions
from sinkstream.cli.chat_history import History
from sinkstream.errors import InvalidArgument

try:
    import readline
except ImportError:  # Python was built without it: lines cannot be edited
    readline = None  # type: ignore[assignment]

_PROMPT = "> "
_CONTINUED = "| "


def _completion(word: str, number: int) -> str | None:
    """Return the completion with this number, as readline asks for them one by one."""
    found = completions(readline.get_line_buffer()[: readline.get_endidx()], word)
    return found[number] if number < len(found) else None


class Lines(Protocol):
    """A source of lines."""

    def read(self, prompt: str) -> str | None:
        """Return the next line without its newline; None at the end.

        Raises:
            InvalidArgument: The line is not in the expected encoding.
        """


def read_entry(lines: Lines) -> str | None:
    """Return the next line together with its continuation lines; None at the end.

    Raises:
        InvalidArgument: A line is not in the expected encoding.
    """
    parts: list[str] = []
    is_continued = True
    while is_continued:
        line = lines.read(_CONTINUED if parts else _PROMPT)
        if line is None:
            break
        part, is_continued = split_ending(line)
        parts.append(part)
    return "\n".join(parts) if parts else None


class PipedLines:
    """Standard input that is not a terminal: UTF-8, without prompts."""

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
    """A terminal, with line editing and history if Python has readline."""

    def __init__(self, history: History | None) -> None:
        """Prepare the terminal.

        Args:
            history: Saves the lines. If None, they are kept for this chat only.
        """
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
