"""What a line of a chat means: a message to the model, or a command. Pure: it runs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import InvalidArgument

Name = Literal["back", "fork", "help", "load", "quit", "reset", "save", "stats", "system", "undo"]

_REMEDY = "A line that begins with // sends one slash."


@dataclass(frozen=True, slots=True)
class Rule:
    """A command as its user sees it."""

    argument: str
    """What has to follow the name; empty where nothing may."""
    meaning: str


COMMANDS: dict[Name, Rule] = {
    "help": Rule("", "show this"),
    "reset": Rule("", "begin a new conversation with the same system prompt"),
    "system": Rule("TEXT", "begin a new conversation with this system prompt"),
    "save": Rule("FILE", "write the conversation to a file"),
    "load": Rule("FILE", "go on with a conversation that was saved"),
    "fork": Rule("", "keep a copy of the conversation as it is now"),
    "back": Rule("", "return to the copy, as often as you like"),
    "undo": Rule("", "take the last question and its reply back"),
    "stats": Rule("", "show what the model still sees, and how fast it writes"),
    "quit": Rule("", "end"),
}
"""In the order in which /help lists them."""


@dataclass(frozen=True, slots=True)
class Message:
    """Something to say to the model."""

    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """Something to do with the conversation."""

    name: Name
    argument: str = ""


def parse(text: str) -> Message | Command | None:
    """Return what a text means that somebody has entered; None if it is blank.

    Raises:
        InvalidArgument: There is no such command, or its argument is missing or too much.
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
            f"chat: a command must be one of {known_names}, but is {quoted('/' + word)}. {_REMEDY}"
        )
    wanted = COMMANDS[name].argument
    if wanted and not argument:
        raise InvalidArgument(f"chat: /{name} must be followed by a {wanted}, but ends there.")
    if argument and not wanted:
        raise InvalidArgument(
            f"chat: /{name} must stand alone, but is followed by {quoted(argument)}. {_REMEDY}"
        )
    if wanted == "FILE" and "\0" in argument:
        raise InvalidArgument(f"chat: a FILE must be a path, but is {quoted(argument)}.")
    return Command(name, argument)


def split_ending(line: str) -> tuple[str, bool]:
    r"""Return a line as it is meant, and whether the next one goes on with it.

    A line that ends with \ goes on; one that ends with \\ ends with \ and does not.
    """
    if line.endswith("\\\\"):
        return line[:-1], False
    if line.endswith("\\"):
        return line[:-1], True
    return line, False


def help_text() -> str:
    """Return all commands, one a line, and how to write what is none."""
    rows = [(f"/{name} {rule.argument}".rstrip(), rule.meaning) for name, rule in COMMANDS.items()]
    width = max(len(usage) for usage, _ in rows)
    return "\n".join(
        [
            *(f"{usage:{width}}  {meaning}" for usage, meaning in rows),
            "A line that ends with \\ goes on with the next one; one that ends with \\\\ sends",
            "a backslash, and one that begins with // a slash. Ctrl-C ends a reply, which",
            "stays as it is; Ctrl-D, or Ctrl-C twice, ends the chat.",
        ]
    )
