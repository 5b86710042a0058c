"""The set of enabled models. It is kept separately; the models are not changed."""

from __future__ import annotations

import weakref
from typing import Any

from sinkstream.errors import InvalidArgument

_models: weakref.WeakSet[Any] = weakref.WeakSet()


def enable(model: Any) -> None:
    """Add a model to the set."""
    _models.add(model)


def disable(model: Any) -> None:
    """Remove a model from the set."""
    _models.discard(model)


def is_enabled(model: Any) -> bool:
    """Return whether a model is in the set."""
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
