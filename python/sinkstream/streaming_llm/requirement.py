"""The one place that asks for transformers, which sinkstream itself does without."""

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

# Releases before these two names hand a cache its positions in another way.
if not (
    hasattr(DynamicLayer, "get_max_length")
    and "query_length" in inspect.signature(DynamicLayer.get_mask_sizes).parameters
):
    raise ImportError(
        "sinkstream.streaming_llm: transformers must have today's cache layers, but is "
        f"{transformers.__version__}. `pip install -U transformers` installs a newer one.",
        name="transformers",
    )
