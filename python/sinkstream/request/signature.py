"""Shows the options of a request in signatures and docstrings, and names the one that was meant."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import formatannotation
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from sinkstream.request.options import OPTIONS, StreamOptions, TurnOptions

_Function = TypeVar("_Function", bound=Callable[..., Any])

# The entry of a docstring that stands for all options, with its continuation lines.
_ENTRY = re.compile(r"^( *)\*\*options: .*(?:\n\1 +\S.*)*\n", re.MULTILINE)
_WIDTH = 100


def shows_options(kind: type, **defaults: Any) -> Callable[[_Function], _Function]:
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


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the declarations of a `TypedDict`; several functions show the same one."""
    return get_type_hints(kind, include_extras=True)


def _shown(kind: Any, defaults: Mapping[str, Any]) -> Iterator[_Shown]:
    """Yield the options of a `TypedDict`: its own ones first, then those that it inherits."""
    hints = _hints(kind)
    for name in sorted(hints, key=_bases_with):
        if name in OPTIONS:
            option = OPTIONS[name]
            text, default = f"{option.doc} {option.kind.rule}".rstrip(), option.default
        else:
            text, default = hints[name].__metadata__[0], None
        yield _Shown(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(name, default),
                annotation=_annotation(hints[name].__origin__),
            ),
            text,
        )


def _annotation(kind: Any) -> Any:
    """Return a type as the source writes it, where Python would write `typing.Union`."""
    if get_origin(kind) is not Union:
        return kind
    parts = get_args(kind)
    return " | ".join("None" if one is type(None) else formatannotation(one) for one in parts)


def _bases_with(name: str) -> int:
    """Return how many of the kinds that others inherit from have an option."""
    return sum(name in base.__annotations__ for base in (StreamOptions, TurnOptions))


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


def no_option(where: str, name: str, known: Iterable[str]) -> TypeError:
    """Return the error for a keyword that does not exist, suggesting a similar one."""
    alike = difflib.get_close_matches(name, list(known), 1)
    remedy = f" Did you mean `{alike[0]}`?" if alike else ""
    return TypeError(f"{where}: there is no option `{name[:40]}`.{remedy}")


def suggests_keywords(function: _Function) -> _Function:
    """Make a function raise `no_option` for a keyword that it does not have."""
    known = [name for name in inspect.signature(function).parameters if name != "self"]

    def check(options: Iterable[str]) -> None:
        for name in options:
            if name not in known:
                raise no_option(function.__name__, name, known)

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        check(options)
        return function(*args, **options)

    @functools.wraps(function)
    async def call_async(*args: Any, **options: Any) -> Any:
        check(options)
        return await function(*args, **options)

    return cast(_Function, call_async if inspect.iscoroutinefunction(function) else call)
