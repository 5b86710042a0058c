"""Parses a line of a chat: a message to the model, or a command. Runs nothing."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import InvalidArgument

Name = Literal[
    "back", "fork", "help", "history", "load", "quit", "reset", "retry", "save", "set", "stats",
    "system", "undo",
]  # fmt: skip

_REMEDY = "Start the line with // to send one that begins with /."


@dataclass(frozen=True, slots=True)
class Rule:
    """A command as the user sees it."""

    argument: str
    """What follows the name; empty if nothing does."""
    meaning: str
    is_optional: bool = False
    """Whether the argument may be missing."""


COMMANDS: dict[Name, Rule] = {
    "help": Rule("[COMMAND]", "show this help, or help for one command", is_optional=True),
    "reset": Rule("", "start a new conversation with the same system prompt"),
    "system": Rule("TEXT", "start a new conversation with this system prompt"),
    "save": Rule("FILE", "write the conversation to a file"),
    "load": Rule("FILE", "continue a saved conversation"),
    "fork": Rule("", "keep a copy of the current conversation"),
    "back": Rule("", "return to that copy, as often as you like"),
    "undo": Rule("", "remove the last question and its reply"),
    "retry": Rule("", "replace the last reply with a new one"),
    "history": Rule("", "show the turns that the model still sees"),
    "set": Rule("[OPTION VALUE]", "change a sampling option, or show them all", is_optional=True),
    "stats": Rule("", "show live and evicted tokens, and the speed"),
    "quit": Rule("", "end the chat"),
}
"""In the order of /help."""

# As other programs call them.
ALIASES: dict[str, Name] = {"?": "help", "bye": "quit", "clear": "reset", "exit": "quit"}


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
    line = text.lstrip()
    if not line:
        return None
    if not line.startswith("/"):
        return Message(text)
    if line.startswith("//"):
        return Message(text.replace("//", "/", 1))
    word = "" if line[1:2].isspace() else "".join(line[1:].split(maxsplit=1)[:1])
    argument = line[1 + len(word) :].strip()
    name = name_of(word)
    if name is None:
        raise InvalidArgument(
            f"chat: the command must be one that /help lists, but is {quoted('/' + word)}. "
            f"{_suggestion(word)}{_REMEDY}"
        )
    rule = COMMANDS[name]
    wanted = rule.argument
    if wanted and not argument and not rule.is_optional:
        raise InvalidArgument(f"chat: /{name} must be followed by {wanted}, but is not.")
    if argument and not wanted:
        raise InvalidArgument(
            f"chat: /{name} must have no argument, but has {quoted(argument)}. {_REMEDY}"
        )
    if wanted == "FILE" and "\0" in argument:
        raise InvalidArgument(f"chat: FILE must be a path, but is {quoted(argument)}.")
    return Command(name, argument)


def name_of(word: str) -> Name | None:
    """Return the command that a word after the slash means, in any case; None for no command."""
    lower = word.lower()
    return ALIASES.get(lower) or next((known for known in COMMANDS if known == lower), None)


def _suggestion(word: str) -> str:
    meant = difflib.get_close_matches(word.lower(), (*COMMANDS, *ALIASES), n=1)
    return f"Did you mean /{meant[0]}? " if meant else ""


def split_ending(line: str) -> tuple[str, bool]:
    r"""Return a line without its continuation mark, and whether the next line continues it.

    A line ending in \ is continued. A line ending in \\ ends in \ and is not continued.
    """
    if line.endswith("\\\\"):
        return line[:-1], False
    if line.endswith("\\"):
        return line[:-1], True
    return line, False


def help_text(topic: str = "") -> str:
    """Return the line of one command, or all of them and how to send special lines."""
    rows = [(f"/{name} {rule.argument}".rstrip(), rule.meaning) for name, rule in COMMANDS.items()]
    width = max(len(usage) for usage, _ in rows)
    name = name_of(topic.removeprefix("/"))
    if name is not None:
        return f"/{name} {COMMANDS[name].argument}".rstrip() + f"  {COMMANDS[name].meaning}"
    return "\n".join(
        [
            *(f"{usage:{width}}  {meaning}" for usage, meaning in rows),
            "/exit and /bye are /quit, /clear is /reset, /? is /help.",
            "End a line with \\ to continue it on the next line, or with \\\\ to send a",
            "backslash. Start a line with // to send one that begins with /. Ctrl-C ends a",
            "reply and keeps what has been written; Ctrl-D, or Ctrl-C twice, ends the chat.",
        ]
    )
