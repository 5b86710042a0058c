"""`.ci/requirements.py`: the Makefile's lists of tools come from pyproject.toml."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_requirements_lists_a_group_and_names_the_groups() -> None:
    command = [sys.executable, str(ROOT / ".ci" / "requirements.py")]
    groups = [*command, "build-system", "serve"]
    listed = subprocess.run(groups, capture_output=True, text=True, check=True).stdout
    found = shlex.split(listed)
    assert len(found) == len(listed.splitlines())  # a marker is part of its requirement
    assert any(each.startswith("pybind11>=") for each in found)
    assert any("; python_version" in each for each in found)
    wrong = subprocess.run([*command, "tests"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 1
    names = (
        "bench, build-system, cluster, conformance, docs, lint, plot, postgres, ray, release, "
        "serve, structured, test"
    )
    assert f"must be one of {names}, but is 'tests'" in wrong.stderr
