"""The source archive and the wheel: what they contain, and what of a used tree they do not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("scikit_build_core")

ROOT = Path(__file__).parents[3]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
VERSION = PYPROJECT["project"]["version"]
FILES = ("CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml")
FOLDERS = ("cmake", "csrc", "python/sinkstream")
GATHERED = (
    ".git/config",
    ".venv/lib/python3.11/site-packages/torch/__init__.py",
    "build/_core.so",
    "csrc/common/__pycache__/check.pyc",
    f"dist/sinkstream-{VERSION}.tar.gz",
    "docs/index.md",
    "model.gguf",
    "python/sinkstream/__pycache__/model.cpython-311.pyc",
    "python/sinkstream/_core.cpython-311-x86_64-linux-gnu.so",
    "tests/python/conftest.py",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Copy the sources of a build."""
    copy = tmp_path / "tree"
    generated = shutil.ignore_patterns("__pycache__", "*.so")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=generated)
    for name in FILES:
        shutil.copy(ROOT / name, copy / name)
    return copy


def sources(tree: Path) -> set[str]:
    return {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}


def gather(tree: Path) -> None:
    for name in GATHERED:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).touch()


def build(tree: Path, what: str, out: Path) -> Path:
    """Run the build backend as pip does."""
    code = f"from scikit_build_core import build; build.build_{what}({str(out)!r})"
    environment = {"PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", code], cwd=tree, env=os.environ | environment, check=True)
    (built,) = out.iterdir()
    return built


def test_a_source_archive_holds_what_a_build_needs_and_nothing_else(
    tree: Path, tmp_path: Path
) -> None:
    needed = sources(tree)
    gather(tree)
    built = build(tree, "sdist", tmp_path / "out")
    assert built.name == f"sinkstream-{VERSION}.tar.gz"
    with tarfile.open(built) as archive:
        found = {name.split("/", 1)[1] for name in archive.getnames()}
    assert found == needed | {"PKG-INFO"}


# Installs the files that the real one compiles, without compiling.
QUICK_CMAKE = """
cmake_minimum_required(VERSION 3.24)
project(sinkstream LANGUAGES NONE)
file(WRITE "${CMAKE_BINARY_DIR}/_core.so" "new")
install(FILES "${CMAKE_BINARY_DIR}/_core.so" DESTINATION sinkstream)
"""
BUILT = ("sinkstream/_core.so",)


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
def test_a_wheel_holds_the_package_and_what_was_built_and_nothing_else(
    tree: Path, tmp_path: Path
) -> None:
    needed = {
        name.removeprefix("python/")
        for name in sources(tree)
        if name.startswith("python/") and not name.endswith(".md")  # maps for readers of sources
    }
    gather(tree)
    (tree / "CMakeLists.txt").write_text(QUICK_CMAKE, encoding="utf-8")
    built = build(tree, "wheel", tmp_path / "out")
    # No build number and no local version: one wheel serves every release of torch.
    assert built.name.startswith(f"sinkstream-{VERSION}-cp3")
    with zipfile.ZipFile(built) as wheel:
        found = {name for name in wheel.namelist() if ".dist-info/" not in name}
        assert {wheel.read(name) for name in BUILT} == {b"new"}
    assert found == needed | {*BUILT}
