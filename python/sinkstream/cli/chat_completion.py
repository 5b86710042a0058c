"""What the Tab key adds to a line of a chat: commands, their options, and file names."""

from __future__ import annotations

from collections.abc import Iterator

from sinkstream.cli.chat_commands import ALIASES, COMMANDS, name_of
from sinkstream.cli.chat_settings import NAMES, shown
from sinkstream.files import expand_home


def completions(line: str, word: str) -> list[str]:
    """Return what the last word of a line may become.

    Args:
        line: The text before the cursor.
        word: The last word of `line`, after its last space; may be empty.
    """
    start = line.lstrip()
    if not start.startswith("/") or start.startswith("//"):
        return []
    command, _, argument = start[1:].partition(" ")
    if " " not in start:
        return [f"/{entry}" for entry in _commands() if entry.startswith(command.lower())]
    name = name_of(command)
    if name is not None and COMMANDS[name].argument == "FILE":
        before = len(argument) - len(word)  # a file name may have spaces
        return [path[before:] for path in _paths(argument.lstrip()) if len(path) >= before]
    if " " in argument:
        return []
    if name == "set":
        return [f"{shown(entry)} " for entry in NAMES if shown(entry).startswith(word)]
    if name == "help":
        return [entry for entry in COMMANDS if entry.startswith(word.lower())]
    return []


def _commands() -> Iterator[str]:
    for name, rule in sorted(COMMANDS.items()):
        yield f"{name} " if rule.argument else name
    yield from (alias for alias in ALIASES if alias.isalpha())


def _paths(typed: str) -> list[str]:
    """Return the files and folders whose paths start like this, written as the user began."""
    folder, slash, start = typed.rpartition("/")
    try:
        entries = sorted(expand_home(folder + slash).iterdir())
        return [
            f"{folder}{slash}{entry.name}{'/' if entry.is_dir() else ''}"
            for entry in entries
            if entry.name.startswith(start) and (start or not entry.name.startswith("."))
        ]
    except (OSError, ValueError):  # ValueError: a NUL
        return []
