"""A tiny model shared by the tests of a file."""

from __future__ import annotations

from tests.python.two_streams import folder, model

__all__ = ["folder", "model"]
