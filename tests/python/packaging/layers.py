"""Reads the law of includes and imports, lists the lines that break it, and finds circles.

A unit is a folder of csrc, or a folder or file of the Python package. Knows nothing of this project
but `_core`, its compiled module.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCES = {".h", ".cc", ".inl", ".cu", ".cuh"}
CORE = "_core"

Law = dict[str, set[str]]  # unit -> the units that it may use


@dataclass(frozen=True)
class Use:
    """A line with which a file uses another file, or `_core`. Paths are below the root."""

    file: Path
    number: int
    text: str
    target: Path


def read_law(text: str) -> Law:
    """Read chains such as `a ← {b, c} ← d; c ← e`: a unit may use all units to its left."""
    law: Law = {}
    for chain in text.split(";"):
        groups = [re.findall(r"\w+", group) for group in chain.split("←")]
        for unit in itertools.chain(*groups):
            law.setdefault(unit, set())
        for lower, upper in itertools.pairwise(groups):
            for unit in upper:
                law[unit].update(lower)
    for _ in law:  # what may be used through others; no chain is longer than the law
        for used in law.values():
            used.update(*(law[unit] for unit in list(used)))
    return law


def unit_of(path: Path, package: str = "") -> str:
    """Return the unit of a file; `__init__.py` at the root is the package itself."""
    first = path.parts[0].removesuffix(".py")
    return package if first == "__init__" else first


def offenders(uses: list[Use], law: Law, package: str = "") -> list[str]:
    """Return a sentence for each line that uses a unit which the law does not allow."""
    found = []
    for use in uses:
        unit, target = unit_of(use.file, package), unit_of(use.target, package)
        if unit != target and target not in law[unit]:
            found.append(f"{use.file}:{use.number}: {unit} must not use {target}: {use.text}")
    return found


def circles(uses: list[Use]) -> list[str]:
    """Return the circles that a walk along all uses closes, as `a → b → a`."""
    graph: dict[Path, set[Path]] = {}
    for use in uses:
        graph.setdefault(use.file, set()).add(use.target)
    found: list[str] = []
    finished: set[Path] = set()

    def walk(file: Path, path: list[Path]) -> None:
        if file in path:
            circle = [*path[path.index(file) :], file]
            found.append(" → ".join(map(str, circle)))
        elif file not in finished:
            for target in sorted(graph.get(file, ())):
                walk(target, [*path, file])
            finished.add(file)

    for file in sorted(graph):
        walk(file, [])
    return found


def includes(root: Path, *, outside: str = "no folder") -> list[Use]:
    """List `#include "..."` of all sources below root, but for those that begin with `outside`.

    Raises:
        ValueError: An include leads to no file below root.
    """
    uses = []
    for path in sorted(path for path in root.rglob("*") if path.suffix in SOURCES):
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            include = re.match(r'\s*#\s*include "([^"]+)"', text)
            if include is None or include[1].startswith(outside):
                continue
            if (root / f"{include[1]}.in").is_file():  # the build writes it; it includes nothing
                continue
            there = [folder / include[1] for folder in (root, path.parent)]
            target = next((file for file in there if file.is_file()), None)
            if target is None:
                raise ValueError(f"{path.relative_to(root)}:{number}: there is no {include[1]}.")
            target = target.resolve().relative_to(root.resolve())
            uses.append(Use(path.relative_to(root), number, text.strip(), target))
    return uses


def imports(package: Path) -> list[Use]:
    """List the imports of a package by its own files, also those for type checkers only.

    Raises:
        ValueError: An import is relative.
    """
    uses = []
    for path in sorted(package.rglob("*.py")):
        file, source = path.relative_to(package), path.read_text(encoding="utf-8")
        lines = source.splitlines()
        for number, name in _imported(ast.parse(source), file):
            top, *parts = name.split(".")
            if top == package.name:
                target = _file_of(package, parts)
                uses.append(Use(file, number, lines[number - 1].strip(), target))
    return uses


def _imported(tree: ast.Module, file: Path) -> Iterator[tuple[int, str]]:
    """Yield line and name of all that is imported; the name may be that of a module's member."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"{file}:{node.lineno}: an import must be absolute.")
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def _file_of(package: Path, parts: list[str]) -> Path:
    """Return the file of a module, or of the module that has this member."""
    if parts[:1] == [CORE]:
        return Path(CORE)
    for count in range(len(parts), 0, -1):
        module = Path(*parts[:count])
        for file in (module / "__init__.py", module.with_suffix(".py")):
            if (package / file).is_file():
                return file
    return Path("__init__.py")
