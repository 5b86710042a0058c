"""Which models are open, for whoever closes or watches all of them."""

from __future__ import annotations

import atexit
import itertools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sinkstream.model import Model

Watcher = Callable[["Model"], None]

_numbers = itertools.count(1)
_open: weakref.WeakValueDictionary[int, Model] = weakref.WeakValueDictionary()
_watchers: list[Watcher] = []


def add(model: Model) -> int:
    """Remember a model until `discard`, and tell who watches. Return its number, from 1."""
    number = next(_numbers)
    _open[number] = model
    for watcher in tuple(_watchers):
        watcher(model)
    return number


def discard(number: int) -> None:
    """Forget a model that has been closed. May be called more than once."""
    _open.pop(number, None)


def open_models() -> list[Model]:
    """List the open models, in the order in which they were loaded."""
    # The references are taken at once: other threads load and close models meanwhile.
    models = (reference() for reference in _open.valuerefs())
    return [model for model in models if model is not None]


def watch(watcher: Watcher) -> None:
    """Have `watcher` called, in the thread that loads it, for every model opened from now on."""
    _watchers.append(watcher)


def unwatch(watcher: Watcher) -> None:
    """Call it no more."""
    _watchers.remove(watcher)


# A thread that is alive when the interpreter ends would abort the process: close what is open.
@atexit.register
def _close_open_models() -> None:
    for model in open_models():
        model.close()
