"""The enabled models, with what each needs. The only change to a model is a hook."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.utils.hooks import RemovableHandle

from sinkstream.errors import InvalidArgument

if TYPE_CHECKING:
    from sinkstream.streaming_llm.families import CachePlan


@dataclass
class Enabled:
    """What is kept about an enabled model; holds no reference to it."""

    plan: CachePlan | None = None  # None if only a `pos_shift` function has enabled it
    hook: RemovableHandle | None = None  # see `before_forward`
    has_warned: bool = False
    # The caches of calls that cannot stream: those calls stay dense to their end.
    dense: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)


_models: weakref.WeakKeyDictionary[Any, Enabled] = weakref.WeakKeyDictionary()


def enable(model: Any) -> Enabled:
    """Enable a model, if it is not, and return its entry."""
    return _models.setdefault(model, Enabled())


def disable(model: Any) -> None:
    """Disable a model, if it is enabled."""
    entry = _models.pop(model, None)
    if entry is not None and entry.hook is not None:
        entry.hook.remove()


def entry_of(model: Any) -> Enabled | None:
    """Return the entry of a model, or None if it is not enabled."""
    return _models.get(model)


def is_enabled(model: Any) -> bool:
    """Return whether a model is enabled."""
    return model in _models


def only_one(where: str) -> Any:
    """Return the only enabled model, for callers that cannot name it.

    Raises:
        InvalidArgument: None is enabled, or more than one.
    """
    models = list(_models)
    if len(models) != 1:
        raise InvalidArgument(
            f"{where}: exactly one model must be enabled for a StartRecentKVCache without a model, "
            f"but {len(models)} are. Use the object that `enable_streaming_llm(model, …)` returns; "
            "it knows its model.",
            param="model",
        )
    return models[0]
