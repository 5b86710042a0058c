"""The maps of folders: each names the sources of its folder, and no file that does not exist.

A map is a README.md. The first column of its tables has names of files: with braces, as shell
patterns, or without an extension, for every file of that name. `name.h` includes `name.cc` and
`name.cu`. The files of a folder without a map are in the nearest map above it.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TREES = (ROOT / "csrc", ROOT / "python" / "sinkstream")
SUFFIXES = {".cc", ".cu", ".cuh", ".h", ".inl", ".py"}
MOST_WITHOUT_A_MAP = 3  # sources of a folder
MOST_LINES = 20  # of a map of an op's files
MAPS = sorted(path for tree in TREES for path in tree.rglob("README.md"))


def below(tree: Path) -> list[Path]:
    """Return the sources of a tree that a map must name."""
    found = [
        path
        for path in sorted(tree.rglob("*"))
        if path.suffix in SUFFIXES and path.name != "__init__.py"
    ]
    sizes = Counter(path.parent for path in found)
    return [path for path in found if sizes[path.parent] > MOST_WITHOUT_A_MAP]


def names_in(text: str) -> list[str]:
    """Return the names in the first column of a map's tables, each brace expanded."""
    cells = re.findall(r"^\| (.*?) \|", text, re.MULTILINE)
    return [name for cell in cells for part in re.findall("`(.*?)`", cell) for name in spelt(part)]


def spelt(name: str) -> list[str]:
    before, brace, rest = name.partition("{")
    if not brace:
        return [name]
    choices, _, after = rest.partition("}")
    return [before + choice + end for choice in choices.split(",") for end in spelt(after)]


def named_by(page: Path) -> dict[str, set[Path]]:
    """Return the files and folders that each name of a map stands for."""
    found = {}
    for name in names_in(page.read_text(encoding="utf-8")):
        endings = {"": ("", *SUFFIXES), ".h": (".h", ".cc", ".cu")}.get(Path(name).suffix)
        stem = name.removesuffix(".h")
        patterns = [stem + ending for ending in endings] if endings else [name]
        found[name] = {path.resolve() for each in patterns for path in page.parent.glob(each)}
    return found


def nearest_map(source: Path) -> Path:
    return next(page for folder in source.parents if (page := folder / "README.md") in MAPS)


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.name)
def test_every_source_is_named_in_the_nearest_map(tree: Path) -> None:
    named = {page: set().union(*named_by(page).values()) for page in MAPS}
    missing = [path for path in below(tree) if path not in named[nearest_map(path)]]
    assert [str(path.relative_to(ROOT)) for path in missing] == []


def test_everything_that_a_map_names_exists() -> None:
    gone = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in MAPS
        for name, paths in named_by(page).items()
        if not paths
    ]
    assert gone == []


def test_a_map_of_kernels_is_read_at_a_glance() -> None:
    maps = [page for page in MAPS if page.parent.parent.parent.name == "kernels"]
    assert maps
    lines = {page: page.read_text(encoding="utf-8").splitlines() for page in maps}
    long = [page for page in maps if sum(map(bool, lines[page])) > MOST_LINES]
    assert [str(page.relative_to(ROOT)) for page in long] == []


def test_names_are_read_as_maps_write_them() -> None:
    text = "| file | what |\n|---|---|\n| `a_{b,c}.h`, [d/](d/README.md) | `e` |\nText `f` |\n"
    assert names_in(text) == ["a_b.h", "a_c.h"]
    assert spelt("{a,b}/{c,d}") == ["a/c", "a/d", "b/c", "b/d"]
