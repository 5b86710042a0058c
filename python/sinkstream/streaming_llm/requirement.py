"""Checks for transformers, which only this subpackage needs."""

from __future__ import annotations

import inspect

try:
    import transformers
    from transformers.cache_utils import DynamicLayer
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise ModuleNotFoundError(
        "sinkstream.streaming_llm: transformers must be installed, but is not. "
        "`pip install transformers` installs it.",
        name="transformers",
    ) from None

# Releases without these two names pass positions to a cache differently.
if not (
    hasattr(DynamicLayer, "get_max_length")
    and "query_length" in inspect.signature(DynamicLayer.get_mask_sizes).parameters
):
    raise ImportError(
        "sinkstream.streaming_llm: transformers must be a recent 5.x release, but is "
        f"{transformers.__version__}. `pip install -U transformers` installs a newer one.",
        name="transformers",
    )
