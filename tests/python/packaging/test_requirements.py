"""`.ci/requirements.py`: the Makefile's lists of tools come from pyproject.toml."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_requirements_lists_a_group_and_names_the_groups() -> None:
    command = [sys.executable, str(ROOT / ".ci" / "requirements.py")]
    listed = subprocess.run([*command, "build-system"], capture_output=True, text=True, check=True)
    assert any(line.startswith("pybind11>=") for line in listed.stdout.splitlines())
    wrong = subprocess.run([*command, "tests"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 1
    groups = (
        "bench, build-system, cluster, conformance, docs, lint, plot, postgres, ray, release, "
        "serve, structured, test"
    )
    assert f"must be one of {groups}, but is 'tests'" in wrong.stderr
