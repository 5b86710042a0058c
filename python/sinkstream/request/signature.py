"""Shows the options of a request where people look for them: in signatures and docstrings."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from sinkstream.request.options import OPTIONS, TYPES

_Function = TypeVar("_Function", bound=Callable[..., Any])

# The entry of a docstring that stands for all options, with its continuation lines.
_ENTRY = re.compile(r"^( *)\*\*options: .*(?:\n\1 +\S.*)*\n", re.MULTILINE)
_WIDTH = 100


def shows_options(**defaults: Any) -> Callable[[_Function], _Function]:
    """List every option in the signature and the docstring of a function with `**options`.

    Type checkers and editors read the same names from `Unpack[StreamOptions]`; `help`,
    `inspect.signature` and notebooks would otherwise show only `**options`.

    Args:
        **defaults: The defaults that the function replaces.
    """
    return lambda function: _show(function, defaults)


def _show(function: _Function, defaults: Mapping[str, Any]) -> _Function:
    signature = inspect.signature(function)
    own = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    listed = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(name, option.default),
            annotation=TYPES[name],
        )
        for name, option in OPTIONS.items()
    ]
    shown = cast(Any, function)
    shown.__signature__ = signature.replace(parameters=[*own, *listed])
    if shown.__doc__ is not None:  # python -OO has none
        shown.__doc__ = _ENTRY.sub(lambda entry: _entries(entry[1]), shown.__doc__)
    return function


def _entries(indent: str) -> str:
    """Return one or more lines for each option, as in a docstring's Args section."""
    return "".join(
        textwrap.fill(
            f"{name}: {option.doc} {option.kind.rule}".rstrip(),
            _WIDTH,
            initial_indent=indent,
            subsequent_indent=indent + "    ",
            break_on_hyphens=False,
        )
        + "\n"
        for name, option in OPTIONS.items()
    )
