"""Reads the commands of `sinkstream`, their arguments and their flags from their functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from typer.models import ArgumentInfo, OptionInfo

from sinkstream.cli.common_options import METAVARS, Loading, Replies, value_type
from sinkstream.cli.program import COMMANDS, function_of


@dataclass(frozen=True)
class Parameter:
    """An argument or a flag of a command."""

    name: str
    spellings: tuple[str, ...]
    """Of a flag, such as -m and --model; of an argument, its name in the usage."""
    metavar: str
    """What a flag's value is; "" if it takes none."""
    help: str
    default: Any
    is_argument: bool
    is_required: bool


@dataclass(frozen=True)
class Command:
    """A command, with the parameters that it does not share with others."""

    name: str
    help: str
    own: tuple[Parameter, ...]
    loading: tuple[Parameter, ...]
    """Those of `Loading` that it takes as they are."""
    replies: tuple[Parameter, ...]

    @property
    def arguments(self) -> list[Parameter]:
        """Return the arguments, in the order of the usage."""
        return [parameter for parameter in self.own if parameter.is_argument]

    @property
    def flags(self) -> list[Parameter]:
        """Return the flags that are not shared."""
        return [parameter for parameter in self.own if not parameter.is_argument]

    @property
    def usage(self) -> str:
        """Return how to call it."""
        words = [p.spellings[0] if p.is_required else f"[{p.spellings[0]}]" for p in self.arguments]
        return " ".join(["sinkstream", self.name, "[OPTIONS]", *words])


def all_commands() -> list[Command]:
    """Return every command."""
    return [read_command(name, function_of(name)) for name in COMMANDS]


def read_command(name: str, function: Callable[..., Any]) -> Command:
    """Read a command from its function."""
    found = {parameter.name: parameter for parameter in parameters_of(function)}
    inner = getattr(function, "__wrapped__", function)  # before the bundles were replaced
    own_names = set(inspect.signature(inner).parameters)
    bundles = {
        bundle: tuple(
            found[entry.name]
            for entry in fields(bundle)
            if entry.name in found and entry.name not in own_names
        )
        for bundle in (Loading, Replies)
    }
    shared = {parameter.name for bundle in bundles.values() for parameter in bundle}
    return Command(
        name=name,
        help=inspect.getdoc(function) or "",
        own=tuple(parameter for parameter in found.values() if parameter.name not in shared),
        loading=bundles[Loading],
        replies=bundles[Replies],
    )


def parameters_of(function: Callable[..., Any]) -> Iterator[Parameter]:
    """Yield the parameters of a command's function, as typer reads them."""
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        annotation = hints[name]
        info = next(iter(getattr(annotation, "__metadata__", ())), None)
        is_argument = isinstance(info, ArgumentInfo)
        kind = value_type(annotation)
        flag = "--" + name.replace("_", "-")
        metavar = getattr(info, "metavar", None) or METAVARS.get(kind, "TEXT")
        has_default = parameter.default is not inspect.Parameter.empty
        yield Parameter(
            name=name,
            spellings=(
                (getattr(info, "metavar", None) or name.upper(),)
                if is_argument
                else spellings(info) or (flag,)
            ),
            metavar="" if kind is bool or is_argument else metavar,
            help=getattr(info, "help", None) or "",
            default=parameter.default if has_default else None,
            is_argument=is_argument,
            is_required=is_argument and not has_default,
        )


def spellings(info: OptionInfo | None) -> tuple[str, ...]:
    """Return the spellings that a declaration names, the shortest first; none if it names none."""
    if info is None:
        return ()
    # typer takes the first of them for a default, until it sees that the declaration is annotated.
    given = (info.default, *(info.param_decls or ()))
    return tuple(sorted((word for word in given if isinstance(word, str)), key=len))


def without_help(commands: list[Command]) -> list[str]:
    """Return a sentence for each command, argument and flag that has no help."""
    found = []
    for command in commands:
        if not command.help:
            found.append(f"`sinkstream {command.name}` has no help.")
        found += [
            f"`sinkstream {command.name}`: {parameter.spellings[-1]} has no help."
            for parameter in (*command.own, *command.loading, *command.replies)
            if not parameter.help
        ]
    return found
