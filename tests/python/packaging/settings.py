"""Finds the environment variables that sources read, the build's settings, and those of a page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

UNKNOWN = "a name that is computed"


def read_by_python(source: str) -> set[str]:
    """Return the environment variables that a Python file reads."""
    tree = ast.parse(source)
    constants = dict(_constants(tree))
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) in {
            "os.environ.get", "os.environ.setdefault", "os.environ.pop", "os.getenv",
        }:  # fmt: skip
            found.add(_name(node.args[0], constants))
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
            found.add(_name(node.slice, constants))
        elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) == "os.environ":
            found.add(_name(node.left, constants))
    return found


def read_by_cpp(source: str) -> set[str]:
    """Return the environment variables that a C++ file reads."""
    calls = re.findall(r'getenv\s*\(\s*(?:"([^"]*)"\s*\))?', source)
    return {name or UNKNOWN for name in calls}


def set_by_cmake(source: str) -> set[str]:
    """Return the settings that a CMake file declares."""
    return set(re.findall(r"option\((\w+)", source)) | set(
        re.findall(r"set\((\w+)[^)]*? CACHE (?!INTERNAL)", source)
    )


def listed(page: str) -> dict[str, set[str]]:
    """Return the names that each section of a page defines, as items "- `NAME`: …"."""
    found: dict[str, set[str]] = {}
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        found[title] = set(re.findall(r"^- `([A-Z_]+)`: ", text, re.MULTILINE))
    return found


def _called(node: ast.Call) -> str:
    return ast.unparse(node.func)


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            for target in node.targets:
                yield ast.unparse(target), str(node.value.value)


def _name(node: ast.expr, constants: dict[str, str]) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    return constants.get(ast.unparse(node).rpartition(".")[2], UNKNOWN)
