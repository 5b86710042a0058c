"""`.ci/check_wheel.py`, the end of `make wheel`: what is wrong with a wheel is named."""

from __future__ import annotations

import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.python.scripts import module_of

ROOT = Path(__file__).parents[3]
NAME = "sinkstream-1.2.3-cp311-cp311-manylinux_2_35_x86_64.whl"
METADATA = """Metadata-Version: 2.4
Name: sinkstream
Version: 1.2.3
Requires-Dist: torch>=2.11
Requires-Dist: numpy==2.4.6; extra == "test"
"""
FILES = {
    "sinkstream/": "",
    "sinkstream/__init__.py": "",
    "sinkstream/_core.cpython-311-x86_64-linux-gnu.so": "",
    "sinkstream/_core/__init__.pyi": "",
    "sinkstream/_core/probes.pyi": "",
    "sinkstream/_core/testing.pyi": "",
    "sinkstream/py.typed": "",
    **{
        f"sinkstream/server/page/{path.name}": ""
        for path in (ROOT / "python" / "sinkstream" / "server" / "page").iterdir()
    },
    "sinkstream-1.2.3.dist-info/METADATA": METADATA,
    "sinkstream-1.2.3.dist-info/licenses/LICENSE": "",
}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return module_of(ROOT / ".ci" / "check_wheel.py")


def problems_of(
    script: ModuleType, folder: Path, files: dict[str, str], name: str = NAME
) -> list[str]:
    with zipfile.ZipFile(folder / name, "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)
    found: list[str] = script.problems_of(folder / name, "1.2.3")
    return found


def test_a_good_wheel_has_no_problems(script: ModuleType, tmp_path: Path) -> None:
    assert problems_of(script, tmp_path, FILES) == []


@pytest.mark.parametrize(
    "name",
    [
        "sinkstream-1.2.4-cp311-cp311-linux_x86_64.whl",
        "sinkstream-1.2.3+torch2.13-cp311-cp311-linux_x86_64.whl",
        "sinkstream-1.2.3-1-cp311-cp311-linux_x86_64.whl",
        "sinkstream-1.2.3-py3-none-any.whl",
    ],
)
def test_a_name_with_another_version_or_tag_is_refused(
    script: ModuleType, tmp_path: Path, name: str
) -> None:
    [problem] = problems_of(script, tmp_path, FILES, name)
    assert problem == "must be called sinkstream-1.2.3-cp3N-cp3N-<linux platform>.whl."


@pytest.mark.parametrize(
    "path",
    [
        "sinkstream/tests/conftest.py",
        "sinkstream/test_model.py",
        "sinkstream/README.md",
        "sinkstream/model.gguf",
        "tests/__init__.py",
        "sinkstream.libs/libstdc++.so.6",
    ],
)
def test_a_file_that_is_not_the_package_is_named(
    script: ModuleType, tmp_path: Path, path: str
) -> None:
    [problem] = problems_of(script, tmp_path, FILES | {path: ""})
    assert problem == f"must hold only the package, but has {path}."


@pytest.mark.parametrize("path", [path for path in FILES if "_core" in path or "typed" in path])
def test_a_missing_file_is_named(script: ModuleType, tmp_path: Path, path: str) -> None:
    [problem] = problems_of(
        script, tmp_path, {name: content for name, content in FILES.items() if name != path}
    )
    assert problem.startswith("must hold")
    assert path.removesuffix(".cpython-311-x86_64-linux-gnu.so") in problem


def test_a_wheel_for_one_release_of_torch_is_refused(script: ModuleType, tmp_path: Path) -> None:
    pinned = METADATA.replace("torch>=2.11", "torch==2.13.0")
    files = FILES | {"sinkstream-1.2.3.dist-info/METADATA": pinned}
    assert problems_of(script, tmp_path, files) == ["must not require one release of torch."]


def test_a_wheel_with_another_version_inside_is_refused(script: ModuleType, tmp_path: Path) -> None:
    other = METADATA.replace("1.2.3", "1.2.4")
    files = FILES | {"sinkstream-1.2.3.dist-info/METADATA": other}
    assert problems_of(script, tmp_path, files) == ["must have version 1.2.3 in its metadata."]


def test_two_wheels_in_the_folder_are_refused(script: ModuleType, tmp_path: Path) -> None:
    for name in ("a.whl", "b.whl"):
        (tmp_path / name).touch()
    with pytest.raises(SystemExit, match=r"must have one \*\.whl, but has a\.whl, b\.whl\."):
        script.the_only(tmp_path, "*.whl")
