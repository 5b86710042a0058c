"""The registry of open models: closes them at exit, and notifies watchers of new ones."""

from __future__ import annotations

import atexit
import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from sinkstream.errors import note_exit

if TYPE_CHECKING:
    from sinkstream import _core
    from sinkstream.checkpoint.spec import DecoderSpec


class OpenModel(Protocol):
    """What metrics and traces need from a `sinkstream.Model`."""

    @property
    def path(self) -> str:
        """Return the path of the checkpoint."""
        ...

    @property
    def spec(self) -> DecoderSpec:
        """Return the model's description."""
        ...

    @property
    def capacity(self) -> Any:
        """Return the model's `Capacity`."""
        ...

    @property
    def spare_cache_bytes(self) -> int:
        """Return the GPU memory that freed caches have left for the next one."""
        ...

    @property
    def runtime(self) -> dict[str, Any]:
        """Return the model's kernel tables, types and threads."""
        ...

    def stats(self) -> dict[str, Any]:
        """Return the engine's counters, gauges and histograms."""
        ...

    def close(self) -> None:
        """End all streams and the generation thread."""
        ...


Watcher = Callable[[OpenModel], None]


@dataclass(frozen=True, slots=True)
class Entry:
    """What the registry knows of a model."""

    number: int
    """Of all models of this process, from 1."""
    native: _core.Model
    """Its native side, which keeps the records of steps and requests."""


_numbers = itertools.count(1)
_open: weakref.WeakValueDictionary[int, OpenModel] = weakref.WeakValueDictionary()
_entries: weakref.WeakKeyDictionary[OpenModel, Entry] = weakref.WeakKeyDictionary()
"""Of all models that exist, closed ones included."""
_watchers: list[Watcher] = []


def add(model: OpenModel, native: _core.Model) -> None:
    """Register a model until `discard`, and call the watchers."""
    entry = Entry(next(_numbers), native)
    _open[entry.number] = model
    _entries[model] = entry
    for watcher in tuple(_watchers):
        watcher(model)


def entry_of(model: OpenModel) -> Entry:
    """Return the entry of a registered model, open or closed."""
    return _entries[model]


def is_model(value: object) -> TypeGuard[OpenModel]:
    """Return whether `value` is a `sinkstream.Model`, open or closed."""
    try:
        return value in _entries
    except TypeError:  # it cannot be referenced weakly
        return False


def discard(model: OpenModel) -> None:
    """Forget a closed model. May be called more than once."""
    _open.pop(_entries[model].number, None)


def open_models() -> list[OpenModel]:
    """List the open models in load order."""
    # `valuerefs` is a snapshot: other threads may load and close models meanwhile.
    models = (reference() for reference in _open.valuerefs())
    return [model for model in models if model is not None]


def watch(watcher: Watcher) -> None:
    """Call `watcher` for every model opened from now on, in the loading thread."""
    _watchers.append(watcher)


def unwatch(watcher: Watcher) -> None:
    """Stop calling `watcher`."""
    _watchers.remove(watcher)


# A native thread that is alive when the interpreter exits would abort the process.
@atexit.register
def _close_open_models() -> None:
    note_exit()
    for model in open_models():
        model.close()
