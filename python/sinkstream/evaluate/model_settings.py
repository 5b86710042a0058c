"""The properties of the model that every result records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sinkstream.model import Model


def model_settings(model: Model) -> dict[str, Any]:
    """Return the model's name, types and kernels, on which the numbers depend."""
    runtime = model.runtime
    return {
        "model": Path(model.path).name,
        "dtype": runtime["dtype"],
        "kv_dtype": runtime["kv_dtype"],
        "quantize": runtime["quantize"],
        "kernels": runtime["kernels"],
    }
