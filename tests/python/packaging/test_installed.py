"""The installed package: what it requires, contains, links with and imports."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata, resources
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import sinkstream
from sinkstream import _core
from sinkstream.errors import how_to_install

ROOT = Path(__file__).parents[3]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_version_is_that_of_pyproject_everywhere() -> None:
    version = PYPROJECT["project"]["version"]
    assert sinkstream.__version__ == metadata.version("sinkstream") == version
    command = [sys.executable, "-m", "sinkstream", "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said == f"sinkstream {version}\n"


def test_the_version_is_written_in_no_other_source() -> None:
    version = PYPROJECT["project"]["version"]
    sources = [ROOT / "CMakeLists.txt", *(ROOT / "cmake").iterdir()]
    for folder in ("csrc", "python"):
        sources += (
            path for path in (ROOT / folder).rglob("*") if path.suffix not in (".so", ".pyc")
        )
    again = rf"(?<![\w.]){re.escape(version)}(?![\w.])"
    texts = ((path, path.read_text(encoding="utf-8")) for path in sources if path.is_file())
    assert [str(path) for path, text in texts if re.search(again, text)] == []


def test_types_ship_with_the_package() -> None:
    assert resources.files("sinkstream").joinpath("py.typed").is_file()
    assert resources.files("sinkstream").joinpath("_core/__init__.pyi").is_file()


@pytest.mark.parametrize("name", ["__init__", "probes", "testing"])
def test_the_types_of_the_core_name_what_the_core_has(name: str) -> None:
    module = _core if name == "__init__" else getattr(_core, name)
    file = ROOT / "python" / "sinkstream" / "_core" / f"{name}.pyi"
    stub = ast.parse(file.read_text(encoding="utf-8"))
    described = {
        node.name: {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
        for node in stub.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }
    described |= {node.name: set() for node in stub.body if isinstance(node, ast.FunctionDef)}
    constants = (node.target for node in stub.body if isinstance(node, ast.AnnAssign))
    described |= {ast.unparse(name): set() for name in constants}
    if module is _core:
        described |= {"probes": set(), "testing": set()}
    has = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    assert described.keys() == has.keys()
    for name, members in described.items():
        if isinstance(has[name], type):
            public = {member for member in vars(has[name]) if not member.startswith("_")}
            assert members - {"__init__"} == public, name


def test_it_requires_no_release_of_torch() -> None:
    required = [Requirement(line) for line in metadata.requires("sinkstream") or []]
    torches = [r for r in required if r.name == "torch"]
    assert {str(r.specifier) for r in torches} == {">=2.11"}


@pytest.mark.parametrize("extra", ["cluster", "plot", "ray", "serve", "structured"])
def test_errors_name_the_packages_of_an_extra(extra: str) -> None:
    """Pip finds them wherever the package itself came from."""
    listed = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "requirements.py"), extra],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    pip, install, *packages = shlex.split(how_to_install(extra).strip("`"))
    assert (pip, install) == ("pip", "install")
    assert {*map(Requirement, packages)} == {*map(Requirement, shlex.split(listed))}


@pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf, of binutils")
def test_the_core_links_with_no_library_of_torch() -> None:
    listed = subprocess.run(
        ["readelf", "--dynamic", str(_core.__file__)], check=True, capture_output=True, text=True
    ).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", listed)
    assert "libc.so.6" in needed  # the listing was parsed
    assert not [name for name in needed if re.search("torch|c10|omp|mkl|dnnl|blas|lapack", name)]
    assert "RUNPATH" not in listed


def test_the_command_is_installed() -> None:
    scripts = metadata.entry_points(group="console_scripts", name="sinkstream")
    assert [script.value for script in scripts] == ["sinkstream.cli:main"]


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm, of binutils")
def test_the_core_computes_without_the_threads_and_kernels_of_other_libraries() -> None:
    listed = subprocess.run(
        ["nm", "--dynamic", "--undefined-only", "--demangle", str(_core.__file__)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    wanted = [line.split(" U ", 1)[1] for line in listed.splitlines() if " U " in line]
    assert wanted  # the list is one
    foreign = re.compile(
        r"^(at::|c10::|torch::|(GOMP|omp|kmp|__kmpc|dnnl|mkl|cblas|[sd]gemm)_?)", re.IGNORECASE
    )
    assert not [name for name in wanted if foreign.match(name)]


def imported_by(code: str) -> set[str]:
    """Run code in a new interpreter; return the modules that it imports, without submodules."""
    script = f"{code}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return set(done.stdout.splitlines()[-1].split())


HEAVY = {"torch", "numpy", "rich", "transformers", "gguf"}


def test_importing_it_imports_nothing_heavy() -> None:
    assert not imported_by("import sinkstream") & HEAVY


def test_the_version_is_shown_without_anything_heavy() -> None:
    """`python -m sinkstream --version`, up to its exit."""
    code = """
import runpy, sys
sys.argv = ["sinkstream", "--version"]
try:
    runpy.run_module("sinkstream", run_name="__main__")
except SystemExit as end:
    assert not end.code, end.code
"""
    found = imported_by(code)
    assert "sinkstream" in found
    assert not found & (HEAVY | {"typer", "click", "tokenizers", "jinja2"})


def test_streaming_imports_nothing_heavy(smollm2: Path) -> None:
    code = f"""
import sinkstream
with sinkstream.load({str(smollm2)!r}, window=60) as model:
    model.generate("The sea", max_tokens=2)
    with model.session("You are brief.") as session:
        session.stream("Hello", max_tokens=2).result()
"""
    assert not imported_by(code) & HEAVY


def test_forward_imports_torch(smollm2: Path) -> None:
    code = f"""
import sinkstream
with sinkstream.load({str(smollm2)!r}, window=60) as model:
    try:
        model.forward([[1]])
    except TypeError as error:
        assert "must be a torch.Tensor, but is of type list" in str(error), error
    else:
        raise SystemExit("no TypeError")
"""
    assert "torch" in imported_by(code)
