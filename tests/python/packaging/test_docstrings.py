"""Every public name has a docstring, and its Args are its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

import pytest

from tests.python.packaging.docstrings import problems

PUBLIC = ("sinkstream", "sinkstream.basic", "sinkstream.evaluate", "sinkstream.streaming_llm")


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_documented(name: str) -> None:
    found = list(problems(import_module(name)))
    assert found == [], "\n".join(["", *found])


class Silent:
    pass


@dataclass
class Plain:
    size: int


class Talkative:
    """Says something.

    Args:
        size: How long.
        gone: What it was.
    """

    def __init__(self, size: int, loud: bool) -> None:
        pass

    def silent(self) -> None:
        pass

    @property
    def unsaid(self) -> int:
        return 0

    @classmethod
    def make(cls, size: int, *rest: int, **options: int) -> None:
        """Make one.

        Args:
            size: How long; or
                rest: not an entry.
            *rest: More.
        """


def describe(size: int) -> None:
    """Describe a size, without a section for it."""


def test_what_is_missing_is_named() -> None:
    module = ModuleType("planted")
    module.__all__ = ["Plain", "Silent", "Talkative", "describe"]  # type: ignore[attr-defined]
    for kind in (Plain, Silent, Talkative, describe):
        setattr(module, kind.__name__, kind)
    assert list(problems(module)) == [
        "planted has no docstring.",
        "planted.Plain has no docstring.",
        "planted.Silent has no docstring.",
        "planted.Talkative: Args must describe `loud`, but does not.",
        "planted.Talkative: Args describes `gone`, which is not a parameter.",
        "planted.Talkative.make: Args must describe `**options`, but does not.",
        "planted.Talkative.silent has no docstring.",
        "planted.Talkative.unsaid has no docstring.",
    ]
