"""Every test starts with no enabled model, and runs the tiny models on one thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from sinkstream.streaming_llm import enabled


@pytest.fixture(autouse=True)
def nothing_enabled() -> Iterator[None]:
    """Disable the models of earlier tests; one torch thread is faster on tiny models."""
    for model in list(enabled._models):
        enabled.disable(model)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
