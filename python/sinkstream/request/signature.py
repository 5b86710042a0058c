"""Shows the options of a request where people look for them: in signatures and docstrings."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast, get_type_hints, is_typeddict

from sinkstream.request.options import OPTIONS, StreamOptions

_Function = TypeVar("_Function", bound=Callable[..., Any])

# The entry of a docstring that stands for all options, with its continuation lines.
_ENTRY = re.compile(r"^( *)\*\*options: .*(?:\n\1 +\S.*)*\n", re.MULTILINE)
_WIDTH = 100


def shows_options(
    kind: type = cast(type, StreamOptions),  # noqa: B008  # a class
    **defaults: Any,
) -> Callable[[_Function], _Function]:
    """List every option in the signature and the docstring of a function with `**options`.

    Type checkers and editors read the same names from `Unpack[…]`; `help`, `inspect.signature` and
    notebooks would otherwise show only `**options`.

    Args:
        kind: The `TypedDict` that the function unpacks.
        **defaults: The defaults that the function replaces.
    """
    shown = list(_shown(kind, defaults))
    return lambda function: _show(function, shown)


@dataclass(frozen=True, slots=True)
class _Shown:
    """An option as a signature and a docstring show it."""

    parameter: inspect.Parameter
    text: str


def _shown(kind: Any, defaults: Mapping[str, Any]) -> Iterator[_Shown]:
    """Yield the options of a `TypedDict`: its own ones first, then those that it inherits."""
    hints = get_type_hints(kind, include_extras=True)
    for name in _own_first(kind):
        type_of, text, default = hints[name].__origin__, hints[name].__metadata__[0], None
        if name in OPTIONS:
            option = OPTIONS[name]
            text, default = f"{option.doc} {option.kind.rule}".rstrip(), option.default
        yield _Shown(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(name, default),
                annotation=type_of,
            ),
            text,
        )


def _own_first(kind: Any) -> list[str]:
    bases = filter(is_typeddict, kind.__orig_bases__)
    inherited = [name for base in bases for name in _own_first(base)]
    return [name for name in kind.__annotations__ if name not in inherited] + inherited


def _show(function: _Function, options: Sequence[_Shown]) -> _Function:
    signature = inspect.signature(function)
    own = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    listed = [option.parameter for option in options]
    shown = cast(Any, function)
    shown.__signature__ = signature.replace(parameters=[*own, *listed])
    if shown.__doc__ is not None:  # python -OO has none
        shown.__doc__ = _ENTRY.sub(lambda entry: _entries(options, entry[1]), shown.__doc__)
    return function


def _entries(options: Sequence[_Shown], indent: str) -> str:
    """Return one or more lines for each option, as in a docstring's Args section."""
    return "".join(
        textwrap.fill(
            f"{option.parameter.name}: {option.text}",
            _WIDTH,
            initial_indent=indent,
            subsequent_indent=indent + "    ",
            break_on_hyphens=False,
        )
        + "\n"
        for option in options
    )
