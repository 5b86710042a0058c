"""Where the lines of a chat come from: somebody at a terminal, or a file or a program."""

from __future__ import annotations

import sys
from typing import Protocol

from sinkstream.cli.chat_commands import split_ending
from sinkstream.cli.chat_history import History
from sinkstream.errors import InvalidArgument

try:
    import readline
except ImportError:  # Python was built without it: lines can be typed and not edited
    readline = None  # type: ignore[assignment]

_PROMPT = "> "
_GOES_ON = "| "


class Lines(Protocol):
    """A source of lines."""

    def read(self, prompt: str) -> str | None:
        """Return the next line without its end; None when there are no more.

        Raises:
            InvalidArgument: The line is no text in the encoding that is expected.
        """


def read_entry(lines: Lines) -> str | None:
    """Return the next line, with those that go on with it; None when there are no more.

    Raises:
        InvalidArgument: A line is no text in the encoding that is expected.
    """
    parts: list[str] = []
    goes_on = True
    while goes_on:
        line = lines.read(_GOES_ON if parts else _PROMPT)
        if line is None:
            break
        part, goes_on = split_ending(line)
        parts.append(part)
    return "\n".join(parts) if parts else None


class PipedLines:
    """Standard input that is no terminal: UTF-8, and no prompts."""

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
    """A terminal, with line editing and history where there is readline."""

    def __init__(self, history: History | None) -> None:
        """Prepare the terminal.

        Args:
            history: Remembers lines; None is for this chat only.
        """
        self._history = history
        # Python edits lines only where it can show them.
        self._edits = readline is not None and sys.stdout.isatty()
        if self._edits:
            readline.set_auto_history(False)
            # A text of several lines that is pasted is one line then, and waits for Enter. Python
            # turns it off for its own prompt. Where readline is libedit this says nothing to it.
            readline.parse_and_bind("set enable-bracketed-paste on")
            for entry in history.entries if history else ():
                readline.add_history(entry)

    def read(self, prompt: str) -> str | None:
        """See `Lines`."""
        try:
            line = self._read(prompt)
        except EOFError:
            return None
        except UnicodeDecodeError as error:
            raise InvalidArgument(
                f"chat: what is typed must be {error.encoding}, but byte {error.start} is not."
            ) from None
        if self._edits and line.strip():
            readline.add_history(line)
            if self._history is not None:
                try:
                    self._history.add(line)
                except OSError as error:  # the line itself is not lost
                    print(f"chat: lines are not kept any more: {error}", file=sys.stderr)
                    self._history = None
        return line

    def _read(self, prompt: str) -> str:
        if self._edits:
            return input(prompt)
        # input() would write its prompt to standard output, which is a file.
        sys.stderr.write(prompt)
        sys.stderr.flush()
        return input()
