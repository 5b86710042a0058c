"""Which models are enabled. It is a list beside the models; nothing is written into them."""

from __future__ import annotations

import weakref
from typing import Any

from sinkstream.errors import InvalidArgument

_models: weakref.WeakSet[Any] = weakref.WeakSet()


def enable(model: Any) -> None:
    """Put a model on the list."""
    _models.add(model)


def disable(model: Any) -> None:
    """Take a model off the list."""
    _models.discard(model)


def is_enabled(model: Any) -> bool:
    """Say whether a model is on the list."""
    return model in _models


def only_one(where: str) -> Any:
    """Return the one model on the list, for callers that cannot name it.

    Raises:
        InvalidArgument: There is none, or more than one.
    """
    models = list(_models)
    if len(models) != 1:
        raise InvalidArgument(
            f"{where}: exactly one model must be enabled for a StartRecentKVCache that was made by "
            f"itself, but {len(models)} are. Take the object that `enable_streaming_llm(model, …)` "
            "returns: it knows its model.",
            param="model",
        )
    return models[0]
