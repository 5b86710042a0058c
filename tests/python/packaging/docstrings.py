"""Finds public names without a docstring, and docstrings whose Args differ from the parameters."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any


def problems(module: ModuleType) -> Iterator[str]:
    """Yield a sentence for each public name of a module that is not documented."""
    if not inspect.getdoc(module):
        yield f"{module.__name__} has no docstring."
    for name in module.__all__:
        value, path = getattr(module, name), f"{module.__name__}.{name}"
        if inspect.isclass(value):
            yield from _of_class(value, path)
        elif inspect.isroutine(value):  # a type alias has no docstring of its own
            yield from _of_function(value, path)


def _of_class(kind: type, path: str) -> Iterator[str]:
    doc = vars(kind).get("__doc__") or ""
    if not doc or doc.startswith(f"{kind.__name__}("):  # which dataclasses write themselves
        yield f"{path} has no docstring."
    elif "\nArgs:\n" in inspect.cleandoc(doc):
        yield from _args(doc, kind, path)
    for name in sorted(set(dir(kind))):
        if name.startswith("_"):
            continue
        owner = next(base for base in kind.__mro__ if name in vars(base))
        if not owner.__module__.startswith(kind.__module__.partition(".")[0]):
            continue  # inherited from another project
        member = vars(owner)[name]
        if isinstance(member, property):
            if not inspect.getdoc(member.fget):
                yield f"{path}.{name} has no docstring."
        elif isinstance(member, classmethod | staticmethod):
            yield from _of_function(member.__func__, f"{path}.{name}", bound=1)
        elif inspect.isfunction(member):
            yield from _of_function(member, f"{path}.{name}", bound=1)


def _of_function(function: Callable[..., Any], path: str, bound: int = 0) -> Iterator[str]:
    doc = function.__doc__ or ""
    if not doc:
        yield f"{path} has no docstring."
    elif "\nArgs:\n" in inspect.cleandoc(doc):
        yield from _args(doc, function, path, bound)


def _args(doc: str, function: Callable[..., Any], path: str, bound: int = 0) -> Iterator[str]:
    """Compare the entries of the Args section with the parameters, but for self and cls."""
    parameters = list(inspect.signature(function).parameters.values())[bound:]
    taken = [re.split(r"[:=]| =", str(parameter))[0] for parameter in parameters]  # with its stars
    section = inspect.cleandoc(doc).partition("\nArgs:\n")[2]
    section = re.split(r"^\S", section, maxsplit=1, flags=re.MULTILINE)[0]
    listed = re.findall(r"^    (\*{0,2}\w+)(?: \([^)]*\))?: ", section, re.MULTILINE)
    for name in taken:
        if name not in listed:
            yield f"{path}: Args must describe `{name}`, but does not."
    for name in listed:
        if name not in taken:
            yield f"{path}: Args describes `{name}`, which is not a parameter."
