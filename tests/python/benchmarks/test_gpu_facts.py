"""`tests/gpu/facts.py`: packages must have the versions of pyproject.toml, not just exist."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import machine
from tests.gpu import facts

pytestmark = pytest.mark.full


def installed(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Pretend that these packages have these versions, and all others theirs."""
    real = facts.version

    def version(package: str) -> str:
        return versions.get(package.replace("-", "_"), real(package))

    monkeypatch.setattr(facts, "version", version)


def test_this_machine_meets_all_requirements() -> None:
    assert facts.unmet(facts.needed()) == []


def test_a_version_out_of_bounds_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, scikit_build_core="1.0.3", pybind11="3.2.0", torch="2.10.0", gguf="1")
    assert facts.unmet(facts.needed()) == [
        "scikit-build-core<2,>=1.1 is 1.0.3",
        "pybind11<3.2,>=3.1 is 3.2.0",
        "torch>=2.11 is 2.10.0",
    ]


def test_what_a_package_itself_needs_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, gguf="missing", pathspec="missing")
    found = facts.unmet(facts.needed())
    assert "gguf is missing" in found
    assert any(each.startswith("pathspec") and each.endswith("is missing") for each in found)


def test_the_bounds_are_those_of_pyproject() -> None:
    carried = facts.carried()
    assert set(facts.pyproject()["build"]) < set(carried)
    assert {"gguf", "libgguf", "pathspec"} < {facts.name_of(each) for each in carried}
    printed = subprocess.run(
        [sys.executable, "-m", "tests.gpu.facts", "--carry"],
        cwd=machine.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout.split() == carried


def test_unmet_requirements_end_with_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "facts.json"
    monkeypatch.setattr(sys, "argv", ["facts", str(file), "--rehearse"])
    assert facts.main() == 0
    installed(monkeypatch, gguf="missing")
    assert facts.main() == 1
    assert json.loads(file.read_text())["unmet"] == ["gguf is missing"]
    assert "but gguf is missing. Carry wheels in .whl" in capsys.readouterr().out


def test_a_machine_without_git_has_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert machine.commit() == "none"
    monkeypatch.setenv("COMMIT", "1234567")
    assert facts.tree() == "1234567"
