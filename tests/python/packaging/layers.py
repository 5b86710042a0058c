"""Reads the law of includes and imports, lists the lines that break it, and finds circles.

A unit is a folder of csrc, or a folder or file of the Python package; within a folder, a unit is a
subfolder. Knows nothing of this project but `_core`, its compiled module, and how that imports.
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
IMPORTERS = {"import_module", "__import__"}

Law = dict[str, set[str]]  # unit -> the units that it may use


@dataclass(frozen=True)
class Use:
    """A line with which a file uses another file, or `_core`. Paths are below the root."""

    file: Path
    number: int
    text: str
    target: Path


def read_law(text: str) -> Law:
    """Read chains such as `a ← {b, c} ← d; c ← e`: a unit may use all units to its left.

    Raises:
        ValueError: Two units may use each other.
    """
    law: Law = {}
    for chain in text.split(";"):
        groups = [re.findall(r"[\w.]+", group) for group in chain.split("←")]
        for unit in itertools.chain(*groups):
            law.setdefault(unit, set())
        for lower, upper in itertools.pairwise(groups):
            for unit in upper:
                law[unit].update(lower)
    for _ in law:  # what may be used through others; no chain is longer than the law
        for used in law.values():
            used.update(*(law[unit] for unit in list(used)))
    if circle := [unit for unit, used in law.items() if unit in used]:
        raise ValueError(f"the law has a circle of {', '.join(circle)}.")
    return law


def unit_of(path: Path, package: str = "") -> str:
    """Return the unit of a file; `__init__.py` at the root is the package itself."""
    first = path.parts[0].split(".")[0]
    return package if first == "__init__" else first


def offenders(uses: list[Use], law: Law, package: str = "") -> list[str]:
    """Return a sentence for each line that uses a unit which the law does not allow."""
    return [
        _sentence(use, unit, target)
        for use in uses
        if (unit := unit_of(use.file, package)) != (target := unit_of(use.target, package))
        and target not in law[unit]
    ]


def offenders_within(folder: str, uses: list[Use], law: Law) -> list[str]:
    """Return the same for the subfolders of a folder; its own files are a unit with its name.

    If the law lacks that name, they may use all subfolders, and be used by them.
    """
    home = Path(folder)
    found = []
    for use in uses:
        if home in use.file.parents and home in use.target.parents:
            unit, target = (
                path.relative_to(home).parts[0] if path.parent != home else home.name
                for path in (use.file, use.target)
            )
            is_free = home.name not in law and home.name in (unit, target)
            if unit != target and not is_free and target not in law[unit]:
                found.append(_sentence(use, unit, target))
    return found


def _sentence(use: Use, unit: str, target: str) -> str:
    return f"{use.file}:{use.number}: {unit} must not use {target}: {use.text}"


def circles(uses: list[Use]) -> list[str]:
    """Return the circles that a walk along all uses closes, as `a → b → a`."""
    graph: dict[Path, set[Path]] = {}
    for use in uses:
        graph.setdefault(_compiled(use.file), set()).add(_compiled(use.target))
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


def _compiled(path: Path) -> Path:
    """Return the path, or `_core` for its stubs and sources: they are one module."""
    return Path(CORE) if path.parts[0] == CORE else path


def includes(root: Path, *, outside: str = "no folder") -> list[Use]:
    """List the includes of all sources below root, but for those that begin with `outside`.

    In angle brackets, only those count that begin with a folder of root.

    Raises:
        ValueError: An include leads to no file below root.
    """
    uses = []
    for path in sorted(path for path in root.rglob("*") if path.suffix in SOURCES):
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            include = re.match(r'\s*#\s*include ?([<"])([^">]+)[">]', text)
            if include is None or include[2].startswith(outside):
                continue
            if include[1] == "<" and not (root / include[2].split("/")[0]).is_dir():
                continue
            if (root / f"{include[2]}.in").is_file():  # the build writes it; it includes nothing
                continue
            there = [folder / include[2] for folder in (root, path.parent)]
            target = next((file for file in there if file.is_file()), None)
            if target is None:
                raise ValueError(f"{path.relative_to(root)}:{number}: there is no {include[2]}.")
            target = target.resolve().relative_to(root.resolve())
            uses.append(Use(path.relative_to(root), number, text.strip(), target))
    return uses


def imports(package: Path) -> list[Use]:
    """List the imports of a package by its own files and stubs, also those for type checkers only.

    Raises:
        ValueError: An import is relative, or does not name its module.
    """
    uses = []
    for path in sorted(path for path in package.rglob("*") if path.suffix in {".py", ".pyi"}):
        file, source = path.relative_to(package), path.read_text(encoding="utf-8")
        lines = source.splitlines()
        for number, name in _imported(ast.parse(source), file):
            top, *parts = name.split(".")
            if top == package.name and [file.parts[0], *parts[:1]] != [CORE, CORE]:
                target = _file_of(package, parts)
                uses.append(Use(file, number, lines[number - 1].strip(), target))
    return uses


def imports_of_core(sources: Path, package: Path) -> list[Use]:
    """List the imports of a package by the sources of its compiled module."""
    uses = []
    for path in sorted(path for path in sources.rglob("*") if path.suffix in SOURCES):
        text = path.read_text(encoding="utf-8")
        for call in re.finditer(rf'import_python\(\s*"{package.name}\.?([^"]*)"', text):
            number = text.count("\n", 0, call.start()) + 1
            target = _file_of(package, call[1].split("."))
            uses.append(Use(CORE / path.relative_to(sources), number, call[0], target))
    return uses


def _imported(tree: ast.Module, file: Path) -> Iterator[tuple[int, str]]:
    """Yield line and name of all that is imported; the name may be that of a module's member.

    A name that ends with a dot is any module of a folder.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"{file}:{node.lineno}: an import must be absolute.")
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and _name_of(node.func) in IMPORTERS:
            yield from _imported_by_call(node, tree, file)


def _imported_by_call(call: ast.Call, tree: ast.Module, file: Path) -> Iterator[tuple[int, str]]:
    """Yield the same for a string, for all strings of a table, or for an f-string's folder."""
    match call.args[0]:
        case ast.Constant(value=str(name)):
            yield call.lineno, name
        case ast.JoinedStr(values=[ast.Constant(value=str(start)), *_]) if start.count(".") > 1:
            yield call.lineno, start[: start.rindex(".") + 1]
        case ast.Subscript(value=ast.Name(id=table)) if values := _strings_of(table, tree):
            yield from values
        case _:
            raise ValueError(f"{file}:{call.lineno}: an import must name its module.")


def _name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _strings_of(table: str, tree: ast.Module) -> list[tuple[int, str]]:
    """Return the values of a dict of strings that a module defines, with their lines."""
    return [
        (value.lineno, value.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and [_name_of(name) for name in node.targets] == [table]
        if isinstance(node.value, ast.Dict)
        for value in node.value.values
        if isinstance(value, ast.Constant) and isinstance(value.value, str)
    ]


def _file_of(package: Path, parts: list[str]) -> Path:
    """Return the file of a module, or of the module that has this member; or a folder."""
    if parts[:1] == [CORE]:
        return Path(CORE)
    if parts[-1:] == [""]:
        return Path(*parts)
    for count in range(len(parts), 0, -1):
        module = Path(*parts[:count])
        for file in (module / "__init__.py", module.with_suffix(".py")):
            if (package / file).is_file():
                return file
    return Path("__init__.py")


@dataclass(frozen=True)
class PrivateUse:
    """A line that uses a name which begins with an underscore."""

    file: Path
    number: int
    text: str
    name: str


def private_uses(package: Path) -> list[str]:
    """Return a sentence for each use of a private name that only other units define.

    A unit defines a name with `def`, `class`, an assignment, or an assignment to `self.name`. It
    uses one with `x.name`, or by importing it. Double underscores belong to Python.
    """
    defined: dict[str, set[str]] = {}
    uses: list[PrivateUse] = []
    for path in sorted(package.rglob("*.py")):
        file, source = path.relative_to(package), path.read_text(encoding="utf-8")
        lines = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            for name in filter(_is_private, _defined_by(node)):
                defined.setdefault(name, set()).add(unit_of(file, package.name))
            for name in filter(_is_private, _used_by(node, package.name)):
                number = getattr(node, "lineno", 0)
                uses.append(PrivateUse(file, number, lines[number - 1].strip(), name))
    return [
        f"{use.file}:{use.number}: {unit} must not use {use.name} of {', '.join(sorted(owners))}: "
        f"{use.text}"
        for use in uses
        if (owners := defined.get(use.name, set()))
        if (unit := unit_of(use.file, package.name)) not in owners
    ]


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name.strip("_") != ""


def _defined_by(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
            yield name


def _used_by(node: ast.AST, package: str) -> Iterator[str]:
    match node:
        case ast.Attribute(attr=name):
            yield name
        case ast.ImportFrom(module=str(module), names=aliases) if module.split(".")[0] == package:
            yield from (alias.name for alias in aliases if alias.name not in (CORE, "_build"))
