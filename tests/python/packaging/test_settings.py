"""Every environment variable that is read, and every setting of the build, is on its page."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.python.packaging.settings import (
    UNKNOWN,
    listed,
    read_by_cpp,
    read_by_python,
    set_by_cmake,
)

ROOT = Path(__file__).parents[3]
PAGE = listed((ROOT / "docs" / "reference" / "environment.md").read_text(encoding="utf-8"))
PACKAGE = PAGE["For users"] | PAGE["For tests"]
REPOSITORY = PAGE["For this repository's tests"]
SETTINGS = PAGE["Build settings"]
CPP = {".cc", ".h", ".inl", ".cu", ".cuh"}


def found(folders: list[str], endings: set[str], read: Callable[[str], set[str]]) -> dict[str, str]:
    """Return a file for each name that files below these folders have."""
    names: dict[str, str] = {}
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in endings and path.is_file():
                for name in read(path.read_text(encoding="utf-8")):
                    names[name] = str(path.relative_to(ROOT))
    return names


@cache
def read_by_package() -> dict[str, str]:
    return found(["python"], {".py"}, read_by_python) | found(["csrc"], CPP, read_by_cpp)


@cache
def read_by_repository() -> dict[str, str]:
    folders = ["tests", "benchmarks"]
    read = found(folders, {".py"}, read_by_python) | found(folders, CPP, read_by_cpp)
    return {name: path for name, path in read.items() if name.startswith("SINKSTREAM_")}


@cache
def declared() -> dict[str, str]:
    settings = found(["cmake", "csrc", "tests/cpp"], {".cmake", ".txt"}, set_by_cmake)
    for name in set_by_cmake((ROOT / "CMakeLists.txt").read_text(encoding="utf-8")):
        settings[name] = "CMakeLists.txt"
    return settings


def test_every_variable_that_the_package_reads_is_on_the_page() -> None:
    missing = {name: path for name, path in read_by_package().items() if name not in PACKAGE}
    assert missing == {}


def test_the_package_reads_every_variable_that_the_page_says_it_does() -> None:
    assert PACKAGE - read_by_package().keys() == set()


def test_every_variable_that_tests_and_benchmarks_read_is_on_the_page() -> None:
    known = PACKAGE | REPOSITORY
    missing = {name: path for name, path in read_by_repository().items() if name not in known}
    assert missing == {}


def test_tests_and_benchmarks_read_every_variable_that_the_page_says_they_do() -> None:
    assert REPOSITORY - read_by_repository().keys() == set()


def test_every_setting_of_the_build_is_on_the_page_and_no_other() -> None:
    missing = {name: path for name, path in declared().items() if name not in SETTINGS}
    assert missing == {}
    assert SETTINGS - declared().keys() == set()


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ('os.environ.get("A", "")', {"A"}),
        ('x = os.environ["A"]', {"A"}),
        ('if "A" in os.environ: pass', {"A"}),
        ('os.getenv("A")', {"A"}),
        ('NAME = "A"\nos.environ.get(NAME)', {"A"}),
        ("os.environ.get(name())", {UNKNOWN}),
        ("dict(os.environ)", set()),
    ],
)
def test_a_variable_that_python_reads_is_found(source: str, names: set[str]) -> None:
    assert read_by_python(source) == names


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ('std::getenv("A")', {"A"}),
        ('getenv( "A" )', {"A"}),
        ("std::getenv(name)", {UNKNOWN}),
    ],
)
def test_a_variable_that_cpp_reads_is_found(source: str, names: set[str]) -> None:
    assert read_by_cpp(source) == names


def test_a_setting_of_cmake_is_found() -> None:
    source = 'option(A "Build" ON)\nset(B AUTO CACHE STRING "C")\nset(D E)\n'
    assert set_by_cmake(source) == {"A", "B"}
