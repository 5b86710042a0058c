"""Positions within the cache, under the names of the original's three modules.

The original replaced the forward of every attention module, so that keys were cached before their
rotation and all of them rotated anew for every token. Today's caches do the same to rounding by
turning nothing but the sinks (see `cache_layer`), and models stay as they are. What is left for
these functions is to name the model whose caches a `StartRecentKVCache` shall make.
"""

from __future__ import annotations

from typing import Any

from sinkstream.errors import InvalidArgument
from sinkstream.streaming_llm import enabled
from sinkstream.streaming_llm.families import model_family


def enable_pos_shift(where: str, model: Any, families: tuple[str, ...]) -> None:
    """Enable a model of one of the families.

    Raises:
        TypeError: It is no model of transformers.
        InvalidArgument: It is of another family.
    """
    family = model_family(where, model)
    if family not in families:
        raise InvalidArgument(
            f'{where}: `model` must be of model_type {" or ".join(families)}, but is "{family}".',
            param="model",
        )
    enabled.enable(model)
