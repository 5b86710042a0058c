"""The options of a chat's replies, which /set shows and changes."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from sinkstream.checkpoint.quoting import quoted
from sinkstream.cli.options import Replies
from sinkstream.errors import InvalidArgument
from sinkstream.request.options import OPTIONS, StreamOptions
from sinkstream.request.value_kinds import Integer, Number

NAMES = tuple(entry.name for entry in fields(Replies))
"""The names of the options, as in `StreamOptions`."""

_RESET = ("default", "none")


class Settings:
    """Options as `Model.stream` takes them, and a limit for replies that would never end."""

    def __init__(self, options: StreamOptions, default_tokens: int | None = None) -> None:
        """Start with `options`.

        Args:
            options: If `max_tokens` is None or missing, `default_tokens` applies.
            default_tokens: None for no limit.
        """
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
        name, text = _name_of(word), text.strip()
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
        if name == "max_tokens":
            return "none" if value is None else str(value)
        if name == "stop":
            return quoted(list(value)) if value else "none"
        return "default" if value is None else f"{value:g}" if name != "seed" else str(value)


def shown(name: str) -> str:
    """Return an option as the user writes it: max-tokens."""
    return name.replace("_", "-")


def _name_of(word: str) -> str:
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
    is_allowed = value in kind if isinstance(kind, Number) else kind.low <= value <= kind.high
    if not is_allowed:
        raise InvalidArgument(f"chat: `{shown(name)}` must be in {kind}, but is {text}.")
    return value
