"""Checks options in the words of the command line, before a model is loaded."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from sinkstream.cli.options import Loading
from sinkstream.errors import InvalidArgument
from sinkstream.request.options import OPTIONS
from sinkstream.request.value_kinds import Integer, Number

# Flags that are not the argument's name with dashes.
_FLAGS = {"stop_token_ids": "--stop-token-id"}
# Of single commands.
_FLAGS_OF = {"demo": {"max_tokens": "--tokens"}, "evaluate": {"max_tokens": "--tokens"}}


def flag_of(command: str, name: str) -> str:
    """Return the flag of a command that sets an argument of a function of the package."""
    flags = {**_FLAGS, **_FLAGS_OF.get(command, {})}
    return flags.get(name, "--" + name.replace("_", "-"))


def check_options(command: str, options: Mapping[str, Any]) -> None:
    """Check the ranges of request options.

    Args:
        command: The name of the command, for errors.
        options: By the names of `StreamOptions`. None stands for the default.

    Raises:
        InvalidArgument: A number is out of range; the message names its flag.
    """
    for name, value in options.items():
        kind = OPTIONS[name].kind
        if value is None or not isinstance(kind, Integer | Number):
            continue
        low, high = kind.low, kind.high
        flag = flag_of(command, name)
        if not (value in kind if isinstance(kind, Number) else low <= value <= high):
            raise InvalidArgument(
                f"{command}: `{flag}` must be in {kind}, but is "
                f"{value:{'g' if isinstance(kind, Number) else 'd'}}.",
                param=name,
            )


def in_flags(command: str, sentence: str, names: Collection[str]) -> str:
    """Return an error of the package with the arguments `names` as the user typed them."""
    known = {*names, *_FLAGS, *_FLAGS_OF.get(command, {})}
    return re.sub(
        r"`(\w+)`",
        lambda name: f"`{flag_of(command, name[1])}`" if name[1] in known else name[0],
        sentence,
    )


def with_model(command: str, loading: Loading, argument: str | None, flag: str | None) -> Loading:
    """Return the loading options with the model that was given as an argument or as a flag."""
    if argument is not None and flag is not None:
        raise InvalidArgument(
            f"{command}: the model must be given once, but both MODEL and --model are set."
        )
    return replace(loading, model=flag if argument is None else argument)
