"""A warning names the line outside the package that made the call."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import sinkstream

PACKAGE = Path(sinkstream.__file__).parent
SOURCE = """
from contextlib import contextmanager
from sinkstream.errors import warn_caller

def warn():
    warn_caller("careful")

def nested(depth):
    return nested(depth - 1) if depth else warn()

@contextmanager
def block():
    nested(2)
    yield

@contextmanager
def block_that_warns_at_its_end():
    yield
    nested(2)

def through_a_block():
    with block():
        pass

def with_category():
    warn_caller("old", DeprecationWarning)
"""


def defined_in(path: Path) -> dict[str, Any]:
    """Run SOURCE as if it were the file at `path`."""
    code: CodeType = compile(SOURCE, str(path), "exec")
    namespace: dict[str, Any] = {"__name__": "made_up"}
    exec(code, namespace)
    return namespace


@pytest.fixture(scope="module")
def package() -> dict[str, Any]:
    """Give functions of a file inside the package."""
    return defined_in(PACKAGE / "folder" / "made_up.py")


def line() -> int:
    """Return the line of the caller."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def assert_names(caught: list[warnings.WarningMessage], number: int) -> None:
    (warning,) = caught
    assert (warning.filename, warning.lineno) == (__file__, number)


@pytest.mark.parametrize("depth", [0, 1, 7])
def test_calls_inside_the_package_are_skipped(package: dict[str, Any], depth: int) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        number = line() + 1
        package["nested"](depth)
    assert_names(caught, number)
    assert (str(caught[0].message), caught[0].category) == ("careful", UserWarning)


@pytest.mark.parametrize("name", ["block", "block_that_warns_at_its_end"])
def test_a_with_block_of_the_caller_is_named(package: dict[str, Any], name: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        number = line() + 1
        with package[name]():
            pass
    assert_names(caught, number)


def test_a_with_block_inside_the_package_is_skipped(package: dict[str, Any]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        number = line() + 1
        package["through_a_block"]()
    assert_names(caught, number)


def test_a_warning_may_have_another_category(package: dict[str, Any]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        number = line() + 1
        package["with_category"]()
    assert_names(caught, number)
    assert (str(caught[0].message), caught[0].category) == ("old", DeprecationWarning)


def test_a_folder_whose_name_only_begins_like_the_packages_is_a_caller() -> None:
    path = PACKAGE.with_name(PACKAGE.name + "_demo") / "made_up.py"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        defined_in(path)["warn"]()
    (warning,) = caught
    assert (warning.filename, warning.lineno) == (str(path), 6)
