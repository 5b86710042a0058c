"""The tests of streams share a tiny model."""

from __future__ import annotations

from tests.python.two_streams import folder, model

__all__ = ["folder", "model"]
