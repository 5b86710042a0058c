"""The build backend's own parts, run as files: they are used before anything is installed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]
VERSION_HEADER = "include/torch/headeronly/version.h"


def fake_torch(folder: Path, version: str) -> Path:
    torch_folder = folder / "torch"
    header = torch_folder / VERSION_HEADER
    header.parent.mkdir(parents=True)
    header.write_text("#pragma once\n", encoding="utf-8")
    text = f"__all__ = ['__version__']\n__version__ = '{version}'\n"
    (torch_folder / "version.py").write_text(text, encoding="utf-8")
    return torch_folder


def test_the_torch_that_runs_is_the_one_that_is_found() -> None:
    assert torch.__file__ is not None
    command = [sys.executable, ROOT / "backend" / "find_torch.py"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    folder, version = found.stdout.splitlines()
    assert Path(folder) == Path(torch.__file__).parent
    assert version == torch.__version__.split("+")[0]


def test_a_torch_is_found_without_importing_it(tmp_path: Path, backend: None) -> None:
    import find_torch as module

    torch_folder = fake_torch(tmp_path, "2.11.0+cu130")
    (torch_folder / "__init__.py").write_text("raise RuntimeError", encoding="utf-8")
    assert module.torch_version(torch_folder) == "2.11.0"


def test_a_folder_without_headers_is_no_torch(
    tmp_path: Path, backend: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import find_torch as module

    (tmp_path / "empty" / "torch").mkdir(parents=True)
    good = fake_torch(tmp_path / "good", "2.13.0")
    folders = [tmp_path / "missing", tmp_path / "empty", tmp_path / "good"]
    monkeypatch.setattr(module, "candidate_folders", lambda: iter(folders))
    assert module.find_torch() == good
    monkeypatch.setattr(module, "candidate_folders", lambda: iter(folders[:2]))
    assert module.find_torch() is None


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the backend's files importable, as the build does."""
    monkeypatch.syspath_prepend(str(ROOT / "backend"))


def test_only_a_missing_torch_is_added_to_the_build(
    tmp_path: Path, backend: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("scikit_build_core")
    import sinkstream_build as module

    monkeypatch.chdir(ROOT)
    assert not [r for r in module.get_requires_for_build_wheel() if r.startswith("torch")]
    assert module.dynamic_metadata({}, {})["dependencies"] == [
        f"torch=={torch.__version__.split('+')[0]}"
    ]
    monkeypatch.setattr(module, "find_torch", lambda: None)
    assert module.PINNED_TORCH in module.get_requires_for_build_wheel()
    assert module.PINNED_TORCH in module.get_requires_for_build_editable()
    assert not [r for r in module.get_requires_for_build_sdist() if r.startswith("torch")]
    assert module.dynamic_metadata({}, {})["dependencies"] == []


def test_the_makefile_pins_the_same_torch_as_the_backend(backend: None) -> None:
    pytest.importorskip("scikit_build_core")
    import sinkstream_build as module

    pinned = re.search(r"^TORCH \?= (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert pinned is not None
    assert pinned.group(1) == module.PINNED_TORCH


def test_requirements_lists_a_group_and_names_the_groups() -> None:
    command = [sys.executable, str(ROOT / "backend" / "requirements.py")]
    listed = subprocess.run([*command, "build-system"], capture_output=True, text=True, check=True)
    assert any(line.startswith("pybind11>=") for line in listed.stdout.splitlines())
    wrong = subprocess.run([*command, "tests"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 1
    assert "must be one of bench, build-system, lint, plot, test, but is 'tests'" in wrong.stderr
