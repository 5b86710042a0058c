"""The build backend: scikit-build-core, plus what it cannot know about torch.

Two additions. Where no torch is installed, a wheel is built against the pinned one. And because
libtorch's C++ interface changes with every release, a wheel requires exactly the torch that it was
built with, not only the range that pyproject.toml allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from find_torch import find_torch, torch_version
from scikit_build_core.build import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
)
from scikit_build_core.build import get_requires_for_build_editable as _requires_for_editable
from scikit_build_core.build import get_requires_for_build_wheel as _requires_for_wheel

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "dynamic_metadata",
    "dynamic_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]

# The release that the tests run with; the Makefile pins the same one.
PINNED_TORCH = "torch==2.13.0"

Settings = dict[str, list[str] | str] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Return what a wheel needs besides pyproject.toml's build requirements."""
    return _requires_for_wheel(config_settings) + _missing_torch()


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """Return what an editable install needs besides pyproject.toml's build requirements."""
    return _requires_for_editable(config_settings) + _missing_torch()


def _missing_torch() -> list[str]:
    return [] if find_torch() else [PINNED_TORCH]


def dynamic_metadata(
    settings: Mapping[str, Any], project: Mapping[str, Any]
) -> dict[str, list[str]]:
    """Add `torch==<the one found>` to the dependencies; a source archive has none to add."""
    torch = find_torch()
    return {"dependencies": [f"torch=={torch_version(torch)}"] if torch else []}


def dynamic_wheel(settings: Mapping[str, Any]) -> dict[str, bool]:
    """Say that a wheel's dependencies may differ from those in the source archive."""
    return {"dependencies": True}
