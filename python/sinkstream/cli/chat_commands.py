"""What a line of a chat means: a message, a command, an option of /set. Runs no command."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

from sinkstream.checkpoint.quoting import quoted
from sinkstream.cli.common_options import Replies
from sinkstream.errors import InvalidArgument
from sinkstream.files import expand_home
from sinkstream.request.options import OPTIONS, Sampling, StreamOptions
from sinkstream.request.value_kinds import Integer, Number

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
    "undo": Rule("", "remove the last question and its reply, and so on"),
    "retry": Rule("", "replace the last reply with a new one"),
    "history": Rule("", "show the conversation, and what the model still sees"),
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


NAMES = tuple(entry.name for entry in fields(Replies))
"""The names of the options, as in `StreamOptions`."""

_RESET = ("default", "none")
_UNSET = {"max_tokens": "none", "seed": "random", "speculation": "automatic"}
"""What options mean that are not set; the others have the model's defaults."""


class Settings:
    """Options as `Model.stream` takes them, and a limit for replies that would never end."""

    def __init__(
        self,
        options: StreamOptions,
        default_tokens: int | None = None,
        defaults: Sampling | None = None,
    ) -> None:
        """Start with `options`; without `max_tokens` there, the limit is `default_tokens`.

        `defaults` are those of the model, for `listing`.
        """
        self._defaults = defaults or Sampling()
        self._default_tokens = default_tokens
        self._options = options
        self._is_limited = options.get("max_tokens") is None and default_tokens is not None

    @property
    def options(self) -> StreamOptions:
        """Return the options of the next reply."""
        if self._is_limited:
            return {**self._options, "max_tokens": self._default_tokens}
        return self._options

    @property
    def default_limit(self) -> int | None:
        """Return the limit if it was not chosen by the user; None if there is none."""
        return self._default_tokens if self._is_limited else None

    def change(self, argument: str) -> str:
        """Set an option as in "temperature 0.5"; return a sentence that says so.

        Raises:
            InvalidArgument: There is no such option, or the value is not allowed.
        """
        word, _, text = argument.partition(" ")
        name, text = _option_named(word), text.strip()
        if not text:
            raise InvalidArgument(
                f"chat: /set must be followed by OPTION VALUE, but is followed only by "
                f"{shown(name)}."
            )
        value = None if text.lower() in _RESET else _value_of(name, text)
        self._options = {**self._options, name: value}  # type: ignore[misc]
        if name == "max_tokens":
            self._is_limited = text.lower() == "default" and self._default_tokens is not None
        if name == "stop" and value is None:
            self._options["stop"] = ()
        return f"{shown(name)} is {self._written(name)}."

    def listing(self) -> str:
        """Return all options with their values."""
        return ", ".join(f"{shown(name)} {self._written(name)}" for name in NAMES) + "."

    def _written(self, name: str) -> str:
        value: Any = self.options.get(name)
        if name == "stop":
            return quoted(list(value)) if value else "none"
        if value is None:
            return _UNSET.get(name) or f"{getattr(self._defaults, name):g} (the model's)"
        return str(value) if isinstance(value, int) else f"{value:g}"


def shown(name: str) -> str:
    """Return an option as the user writes it: max-tokens."""
    return name.replace("_", "-")


def _option_named(word: str) -> str:
    name = word.lower().lstrip("-").replace("-", "_")
    if name in NAMES:
        return name
    known = [shown(entry) for entry in sorted(NAMES)]
    starts = [entry for entry in known if entry.startswith(word.lower())] if word else []
    meant = starts or difflib.get_close_matches(word.lower(), known, n=1)
    raise InvalidArgument(
        f"chat: the option must be one of {', '.join(known)}, but is {quoted(word)}."
        + (f" Did you mean {meant[0]}?" if meant else "")
    )


def _value_of(name: str, text: str) -> Any:
    kind = OPTIONS[name].kind
    if not isinstance(kind, Integer | Number):
        return [text]
    convert: Callable[[str], int | float] = int if isinstance(kind, Integer) else float
    try:
        value = convert(text)
    except ValueError:
        what = "an integer" if convert is int else "a number"
        raise InvalidArgument(
            f"chat: `{shown(name)}` must be {what}, but is {quoted(text)}."
        ) from None
    if value not in kind:
        raise InvalidArgument(f"chat: `{shown(name)}` must be in {kind}, but is {text}.")
    return value


def completions(line: str, word: str) -> list[str]:
    """Return what the last word of a line, which may be empty, may become."""
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
