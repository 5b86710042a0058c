"""Suggests the keyword that was probably meant when a function lacks the given one."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])


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
