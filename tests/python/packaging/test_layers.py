"""The layers of docs/internals/architecture.md: what may include or import what, and no circles."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.python.packaging.layers import (
    CORE,
    SOURCES,
    Law,
    Use,
    circles,
    imports,
    imports_of_core,
    includes,
    offenders,
    offenders_within,
    private_uses,
    read_law,
)

ROOT = Path(__file__).parents[3]
CSRC = ROOT / "csrc"
PACKAGE = ROOT / "python" / "sinkstream"
EMULATOR = "cuda_emulator/"  # of the tests: kernels that are compiled for it include it


FOLDERS = (  # those with subfolders that the page orders
    "kernels", "kernels/cpu", "kernels/cuda", "model", "checkpoint", "text", "cluster",
)  # fmt: skip


def law_of(part: str) -> Law:
    page = (ROOT / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8")
    (law,) = re.findall(rf"^{re.escape(part)}: +(.*(?:\n +.*)*)", page, re.MULTILINE)
    return read_law(law)


@cache
def uses_of_cpp() -> list[Use]:
    return includes(CSRC, outside=EMULATOR)


@cache
def uses_of_python() -> list[Use]:
    return [*imports(PACKAGE), *imports_of_core(CSRC, PACKAGE)]


def subfolders(folder: Path) -> set[str]:
    return {
        path.name
        for path in folder.iterdir()
        if any(file.suffix in SOURCES | {".py"} for file in path.rglob("*"))
        if path.is_dir() and path.name != "__pycache__"
    }


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_no_include_goes_up() -> None:
    assert offenders(uses_of_cpp(), law_of("C++")) == []


def test_no_import_goes_up() -> None:
    uses = [use for use in uses_of_python() if use.file.parts[0] != CORE]
    assert offenders(uses, law_of("Python"), "sinkstream") == []


def test_the_core_imports_what_its_law_lists_and_no_more() -> None:
    uses = [use for use in uses_of_python() if use.file.parts[0] == CORE]
    used = {".".join(use.target.with_suffix("").parts) for use in uses}
    assert used == law_of(CORE)[CORE]
    sources = {use.file.parts[1] for use in uses if use.file.suffix != ".pyi"}
    assert sources == {"bindings"}


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_subfolder_uses_one_above_it(folder: str) -> None:
    uses = [*uses_of_cpp(), *uses_of_python()]
    assert offenders_within(folder, uses, law_of(folder)) == []


def test_no_folder_uses_a_private_name_of_another() -> None:
    assert private_uses(PACKAGE) == []


def test_includes_have_no_circle() -> None:
    assert circles(uses_of_cpp()) == []


def test_imports_have_no_circle() -> None:
    assert circles(uses_of_python()) == []


def test_only_bindings_know_python() -> None:
    found = [
        str(path.relative_to(CSRC))
        for path in CSRC.rglob("*.*")
        if re.search(r"#\s*include <(pybind11|Python\.h|torch|ATen|c10)", path.read_text("utf-8"))
    ]
    assert [name for name in found if not name.startswith("bindings/")] == []


def test_no_source_uses_a_stream_of_the_standard_library() -> None:
    """A module that carries its own C++ library crashes in their locale next to torch's."""
    streams = re.compile(r"#\s*include <(iostream|[iofs]*stream|fstream|iomanip|locale|regex)>")
    found = [
        str(path.relative_to(CSRC))
        for path in CSRC.rglob("*.*")
        if streams.search(path.read_text("utf-8"))
    ]
    assert found == []


def used_by(start: str) -> set[Path]:
    """Return the files below a folder of csrc, and all that they include."""
    graph: dict[Path, set[Path]] = {}
    for use in uses_of_cpp():
        graph.setdefault(use.file, set()).add(use.target)
    left = [path for path in graph if path.as_posix().startswith(start) and path.suffix != ".cc"]
    found: set[Path] = set()
    while left:
        if (path := left.pop()) not in found:
            found.add(path)
            left += graph.get(path, ())
    return found


def test_code_for_a_gpu_calls_no_builtin_of_the_hosts_compiler() -> None:
    """nvcc compiles such calls for a GPU without a warning, but they return something else."""
    builtin = re.compile(r"std::(bit_ceil|bit_floor|bit_width|count[lr]_|popcount)|__builtin_")
    files = used_by("kernels/cuda/")
    assert Path("common/divide_up.h") in files
    code = {path: re.sub("//.*", "", (CSRC / path).read_text("utf-8")) for path in files}
    assert [path for path, text in code.items() if builtin.search(text)] == []


def test_the_law_has_every_folder_and_no_other() -> None:
    assert set(law_of("C++")) == {path.name for path in CSRC.iterdir() if path.is_dir()}
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert set(law_of("Python")) == modules | folders | {"_core", "sinkstream"}


def test_the_law_orders_all_subfolders() -> None:
    found = {}
    for root in (CSRC, PACKAGE):
        for folder in (path for path in root.rglob("*") if path.is_dir()):
            if len(names := subfolders(folder)) > 1:
                found[folder.relative_to(root).as_posix()] = names
    assert found == {folder: set(law_of(folder)) - {Path(folder).name} for folder in FOLDERS}


def test_the_law_of_the_core_is_the_one_decided() -> None:
    """An edit of the page alone does not change it."""
    chains = (
        "common ← device ← probes; device ← kernels ← {cache, sampling} ← model ← engine ← runtime"
        " ← bindings; probes ← bindings"
    )
    assert law_of("C++") == read_law(chains)


def test_few_modules_lie_outside_the_folders() -> None:
    """A newcomer reads this list first."""
    assert len(list(PACKAGE.glob("*.py"))) <= 10


LAW = "low ← {left, right} ← high; low ← aside"


def test_a_law_allows_all_that_is_to_the_left() -> None:
    assert read_law(LAW) == {
        "low": set(),
        "left": {"low"},
        "right": {"low"},
        "high": {"low", "left", "right"},
        "aside": {"low"},
    }


@pytest.mark.parametrize("chains", ["a ← b; b ← a", "a ← b ← c; c ← {d, a}", "a ← a"])
def test_a_law_with_a_circle_is_refused(chains: str) -> None:
    with pytest.raises(ValueError, match="the law has a circle of a"):
        read_law(chains)


@pytest.mark.parametrize(
    ("file", "include", "is_allowed"),
    [
        ("high/a.cc", "low/b.h", True),
        ("high/a.cc", "left/b.h", True),
        ("high/deeper/a.cc", "high/b.h", True),
        ("low/a.h", "high/b.h", False),
        ("left/a.h", "right/b.h", False),
        ("aside/a.h", "left/b.h", False),
    ],
)
def test_a_planted_include_is_named(
    tmp_path: Path, file: str, include: str, is_allowed: bool
) -> None:
    write(tmp_path, {include: "", file: f'// why\n#include <string>\n#include "{include}"\n'})
    above, below = file.split("/")[0], include.split("/")[0]
    sentence = f'{file}:3: {above} must not use {below}: #include "{include}"'
    assert offenders(includes(tmp_path), read_law(LAW)) == ([] if is_allowed else [sentence])


def test_an_include_in_angle_brackets_is_found(tmp_path: Path) -> None:
    text = "#include <sys/mman.h>\n#include <high/b.h>\n"
    root = write(tmp_path, {"high/b.h": "", "low/a.h": text})
    sentence = "low/a.h:2: low must not use high: #include <high/b.h>"
    assert offenders(includes(root), read_law(LAW)) == [sentence]


@pytest.mark.parametrize(
    ("file", "include", "chains", "is_allowed"),
    [
        ("in/right/a.h", "in/left/b.h", "left ← right", True),
        ("in/left/a.h", "in/right/b.h", "left ← right", False),
        ("in/left/a.h", "in/b.h", "left ← right", True),
        ("in/a.h", "in/left/b.h", "left ← right", True),
        ("in/left/a.h", "in/b.h", "in ← left ← right", True),
        ("in/a.h", "in/left/b.h", "in ← left ← right", False),
        ("in/left/a.h", "out/right/b.h", "left ← right", True),
    ],
)
def test_a_planted_use_of_a_subfolder_is_named(
    tmp_path: Path, file: str, include: str, chains: str, is_allowed: bool
) -> None:
    root = write(tmp_path, {include: "", file: f'#include "{include}"\n'})
    above, below = (path.split("/")[-2] for path in (file, include))
    sentence = f'{file}:1: {above} must not use {below}: #include "{include}"'
    found = offenders_within("in", includes(root), read_law(chains))
    assert found == ([] if is_allowed else [sentence])


def test_an_include_of_a_neighbour_is_found(tmp_path: Path) -> None:
    root = write(tmp_path, {"low/a.h": '#include "b.h"\n', "low/b.h": '#include "low/a.h"\n'})
    assert circles(includes(root)) == ["low/a.h → low/b.h → low/a.h"]


def test_an_include_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    root = write(tmp_path, {"low/a.h": '#include "low/b.h"\n'})
    with pytest.raises(ValueError, match=r"low/a\.h:1: there is no low/b\.h"):
        includes(root)
    assert includes(root, outside="low/b") == []


@pytest.mark.parametrize(
    ("file", "text", "target"),
    [
        ("high.py", "from app import low\n", None),
        ("high.py", "from app.left import x\n", None),
        ("high.py", "from app.left.part import x\n", None),
        ("low.py", "import app.high\n", "high"),
        ("low.py", "from app import high\n", "high"),
        ("low.py", "from app.left.part import x\n", "left"),
        ("low.py", "def f():\n    from app.high import x\n", "high"),
        ("low.py", "if TYPE_CHECKING:\n    from app.left import part\n", "left"),
        ("low.py", "from app import name_of_the_package\n", "app"),
        ("left/part.py", "from app.right import x\n", "right"),
        ("left/part.py", "from app import _core\n", None),
        ("left/part.py", "import app._core.probes\n", None),
        ("low.py", "import_module('app.high')\n", "high"),
        ("low.py", "importlib.import_module('app.high').x()\n", "high"),
        ("low.py", "__import__('app.high')\n", "high"),
        ("low.py", "import_module(f'app.left.{x}')\n", "left"),
        ("low.py", "import_module(HOMES[x])\nHOMES = {\n    'b': 'app.high'}\n", "high"),
        ("high.py", "import_module('app.left.part')\nimport_module('other')\n", None),
        ("low.pyi", "from app.high import x\n", "high"),
    ],
)
def test_a_planted_import_is_named(
    tmp_path: Path, file: str, text: str, target: str | None
) -> None:
    names = ("__init__.py", "low.py", "left/__init__.py", "left/part.py", "right.py", "high.py")
    package = write(tmp_path / "app", {**dict.fromkeys(names, ""), file: text})
    law = read_law("{low, _core} ← {left, right} ← high ← app")
    lines = text.splitlines()
    unit = file.split("/")[0].split(".")[0]
    sentence = f"{file}:{len(lines)}: {unit} must not use {target}: {lines[-1].strip()}"
    assert offenders(imports(package), law, "app") == ([] if target is None else [sentence])


def test_a_circle_of_imports_is_named(tmp_path: Path) -> None:
    package = write(
        tmp_path / "app",
        {
            "__init__.py": "from app.a import x\n",
            "a.py": "if TYPE_CHECKING:\n    from app.b import y\n",
            "b.py": "import app.c\nfrom app._core import z\n",
            "c.py": "def f():\n    from app.a import x\n",
        },
    )
    assert circles(imports(package)) == ["a.py → b.py → c.py → a.py"]


def test_a_relative_import_is_refused(tmp_path: Path) -> None:
    package = write(tmp_path / "app", {"__init__.py": "", "a.py": "from . import b\n"})
    with pytest.raises(ValueError, match=r"a\.py:1: an import must be absolute"):
        imports(package)


@pytest.mark.parametrize("name", ["x", "f'app.{x}'", "HOMES[x]", "f'{x}.y'"])
def test_an_import_of_an_unnamed_module_is_refused(tmp_path: Path, name: str) -> None:
    text = f"HOMES = homes()\nimport_module({name})\n"
    package = write(tmp_path / "app", {"__init__.py": "", "a.py": text})
    with pytest.raises(ValueError, match=r"a\.py:2: an import must name its module"):
        imports(package)


def test_the_imports_of_a_compiled_module_are_found(tmp_path: Path) -> None:
    package = write(
        tmp_path / "app",
        {
            "__init__.py": "",
            "_core/__init__.pyi": "from app._core import probes\nfrom app.a import x\n",
            "_core/probes.pyi": "from app._core import y\n",
            "a.py": "from app import _core\n",
            "b.py": "from app._core.probes import z\n",
        },
    )
    sources = write(tmp_path / "csrc", {"low/c.cc": 'x();\nimport_python(\n    "app.b")\n'})
    of_core = imports_of_core(sources, package)
    assert [(str(use.file), use.number, str(use.target)) for use in of_core] == [
        ("_core/low/c.cc", 2, "b.py")
    ]
    assert circles(imports(package)) == ["_core → a.py → _core"]
    assert circles([use for use in imports(package) if use.file.name != "a.py"] + of_core) == [
        "_core → b.py → _core"
    ]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("def f(one):\n    return one._state\n", "_state"),
        ("def f(one):\n    one._state = 3\n", "_state"),
        ("async def f(one):\n    await one.part._work()\n", "_work"),
        ("from app.left.part import _helper\n", "_helper"),
        ("import app.left.part as part\npart._helper()\n", "_helper"),
        ("class Own:\n    def __init__(self):\n        self._state = 3\n\nOwn()._state\n", None),
        ("from app.left.part import shown\nshown.__class__\n", None),
        ("import other\nother._state_of_another_project\n", None),
    ],
)
def test_a_planted_use_of_a_private_name_is_named(
    tmp_path: Path, text: str, name: str | None
) -> None:
    part = (
        "def _helper(): ...\n\n\nclass Part:\n    def __init__(self):\n        self._state = 1\n\n"
        "    async def _work(self): ...\n"
    )
    sibling = "from app.left.part import _helper\nPart()._state\n"  # the same folder may
    files = {"left/part.py": part, "left/sibling.py": sibling, "right.py": text}
    found = private_uses(write(tmp_path / "app", files))
    number, line = len(text.splitlines()), text.splitlines()[-1].strip()
    sentence = f"right.py:{number}: right must not use {name} of left: {line}"
    assert found == ([] if name is None else [sentence])
