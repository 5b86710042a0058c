"""The installed package: what it requires, what it carries, and what it refuses to run with."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata, resources
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

import sinkstream
from sinkstream import _build, _core, _torch_version

ROOT = Path(__file__).parents[3]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_version_is_that_of_pyproject() -> None:
    assert sinkstream.__version__ == PYPROJECT["project"]["version"]


def test_types_ship_with_the_package() -> None:
    assert resources.files("sinkstream").joinpath("py.typed").is_file()
    assert resources.files("sinkstream").joinpath("_core.pyi").is_file()


def test_the_types_of_the_core_name_what_the_core_has() -> None:
    stub = ast.parse((ROOT / "python/sinkstream/_core.pyi").read_text(encoding="utf-8"))
    described = {
        node.name: {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
        for node in stub.body
        if isinstance(node, ast.ClassDef)
    }
    described |= {node.name: set() for node in stub.body if isinstance(node, ast.FunctionDef)}
    has = {name: value for name, value in vars(_core).items() if not name.startswith("_")}
    assert described.keys() == has.keys()
    for name, members in described.items():
        if isinstance(has[name], type):
            public = {member for member in vars(has[name]) if not member.startswith("_")}
            assert members - {"__init__"} == public, name


def test_it_requires_exactly_the_torch_that_it_was_built_with() -> None:
    release = torch.__version__.split("+")[0]
    assert release == _torch_version.BUILT_AGAINST
    required = [Requirement(line) for line in metadata.requires("sinkstream") or []]
    torches = [r for r in required if r.name == "torch"]
    assert {str(r.specifier) for r in torches} == {">=2.11", f"=={release}"}


def test_another_torch_is_refused_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.99.0+cpu")
    with pytest.raises(ImportError, match=r"torch must be .*, but is 2\.99\.0\+cpu\."):
        _build.check_torch_version()


def test_the_command_is_installed() -> None:
    scripts = metadata.entry_points(group="console_scripts", name="sinkstream")
    assert [script.value for script in scripts] == ["sinkstream.cli:main"]


def test_importing_it_imports_no_model_library() -> None:
    code = "import sys, sinkstream; print(sorted(sys.modules.keys() & {'transformers', 'gguf'}))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (shown.stdout, shown.stderr) == ("[]\n", "")


def test_the_core_computes_without_anybody_elses_threads_or_kernels() -> None:
    """Of torch it takes memory for tensors; no operator, no OpenMP, no MKL, no oneDNN."""
    if shutil.which("nm") is None:
        pytest.skip("needs nm, of binutils")
    listed = subprocess.run(
        ["nm", "--dynamic", "--undefined-only", "--demangle", str(_core.__file__)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    wanted = [line.split(" U ", 1)[1] for line in listed.splitlines() if " U " in line]
    operators = [name for name in wanted if "at::_ops::" in name or "at::native" in name]
    assert [name.partition("::call")[0] for name in operators] == ["at::_ops::empty_memory_format"]
    foreign = re.compile(r"^(GOMP|omp|kmp|__kmpc|dnnl|mkl|cblas|[sd]gemm)_?", re.IGNORECASE)
    assert not [name for name in wanted if foreign.match(name)]
