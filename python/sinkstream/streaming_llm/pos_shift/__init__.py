"""Positions within the cache, under the names of the original's three modules.

The original replaced the forward method of every attention module: it cached keys before their
rotation, and rotated all of them again for every token. Our caches do the same, up to rounding, by
rotating only the sinks (see `cache_layer`), and do not change the model. These functions only name
the model for which a `StartRecentKVCache` creates caches.
"""

from __future__ import annotations

from typing import Any

from sinkstream.errors import InvalidArgument
from sinkstream.streaming_llm import enabled
from sinkstream.streaming_llm.families import model_family


def enable_pos_shift(where: str, model: Any, families: tuple[str, ...]) -> None:
    """Enable a model of one of the families.

    Raises:
        TypeError: `model` is not a transformers model.
        InvalidArgument: It belongs to a different family.
    """
    family = model_family(where, model)
    if family not in families:
        raise InvalidArgument(
            f'{where}: `model` must be of model_type {", ".join(families)}, but is "{family}".',
            param="model",
        )
    enabled.enable(model)
