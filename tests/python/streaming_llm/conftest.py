"""Every test starts with no enabled model."""

from __future__ import annotations

import pytest

from sinkstream.streaming_llm import enabled


@pytest.fixture(autouse=True)
def nothing_enabled() -> None:
    """Disable the models of earlier tests."""
    for model in list(enabled._models):
        enabled.disable(model)
