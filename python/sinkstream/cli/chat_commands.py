"""Parses a line of a chat: a message to the model, or a command. Runs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import InvalidArgument

Name = Literal["back", "fork", "help", "load", "quit", "reset", "save", "stats", "system", "undo"]

_REMEDY = "Start the line with // to send a slash."


@dataclass(frozen=True, slots=True)
class Rule:
    """A command as the user sees it."""

    argument: str
    """Required after the name; empty if the command takes no argument."""
    meaning: str


COMMANDS: dict[Name, Rule] = {
    "help": Rule("", "show this help"),
    "reset": Rule("", "start a new conversation with the same system prompt"),
    "system": Rule("TEXT", "start a new conversation with this system prompt"),
    "save": Rule("FILE", "write the conversation to a file"),
    "load": Rule("FILE", "continue a saved conversation"),
    "fork": Rule("", "keep a copy of the current conversation"),
    "back": Rule("", "return to that copy, as often as you like"),
    "undo": Rule("", "remove the last question and its reply"),
    "stats": Rule("", "show live and evicted tokens, and the speed"),
    "quit": Rule("", "end the chat"),
}
"""In the order of /help."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message to the model."""

    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command, and its argument if it takes one."""

    name: Name
    argument: str = ""


def parse(text: str) -> Message | Command | None:
    """Return the meaning of an entry; None if it is blank.

    Raises:
        InvalidArgument: The command does not exist, lacks its argument, or takes none.
    """
    if not text.strip():
        return None
    if not text.startswith("/"):
        return Message(text)
    if text.startswith("//"):
        return Message(text[1:])
    word = "" if text[1:2].isspace() else "".join(text[1:].split(maxsplit=1)[:1])
    argument = text[1 + len(word) :].strip()
    name = next((known for known in COMMANDS if known == word), None)
    if name is None:
        known_names = ", ".join(f"/{known}" for known in sorted(COMMANDS))
        raise InvalidArgument(
            f"chat: the command must be one of {known_names}, but is {quoted('/' + word)}. "
            f"{_REMEDY}"
        )
    wanted = COMMANDS[name].argument
    if wanted and not argument:
        raise InvalidArgument(f"chat: /{name} must be followed by {wanted}, but is not.")
    if argument and not wanted:
        raise InvalidArgument(
            f"chat: /{name} must have no argument, but has {quoted(argument)}. {_REMEDY}"
        )
    if wanted == "FILE" and "\0" in argument:
        raise InvalidArgument(f"chat: FILE must be a path, but is {quoted(argument)}.")
    return Command(name, argument)


def split_ending(line: str) -> tuple[str, bool]:
    r"""Return a line without its continuation mark, and whether the next line continues it.

    A line ending in \ is continued. A line ending in \\ ends in \ and is not continued.
    """
    if line.endswith("\\\\"):
        return line[:-1], False
    if line.endswith("\\"):
        return line[:-1], True
    return line, False


def help_text() -> str:
    """Return all commands, one per line, and how to send special lines."""
    rows = [(f"/{name} {rule.argument}".rstrip(), rule.meaning) for name, rule in COMMANDS.items()]
    width = max(len(usage) for usage, _ in rows)
    return "\n".join(
        [
            *(f"{usage:{width}}  {meaning}" for usage, meaning in rows),
            "End a line with \\ to continue it on the next line, or with \\\\ to send a",
            "backslash. Start a line with // to send a slash. Ctrl-C ends a reply and keeps",
            "what has been written; Ctrl-D, or Ctrl-C twice, ends the chat.",
        ]
    )
