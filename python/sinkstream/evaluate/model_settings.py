"""What every result says about the model that it was measured on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sinkstream.model import Model


def model_settings(model: Model) -> dict[str, Any]:
    """Return the model's name, its types and its kernels: what the numbers depend on."""
    runtime = model.runtime
    return {
        "model": Path(model.path).name,
        "dtype": runtime["dtype"],
        "kv_dtype": runtime["kv_dtype"],
        "kernels": runtime["kernels"],
    }
