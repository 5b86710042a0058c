"""A copy of the Python package with one mistake in it, and the tests that run on the copy.

Compiled modules come from the installed package; no mistake is planted there. Each run is its own
process, forked from one that has already imported torch and transformers, because importing them
takes longer than most tests. Knows no mistake by name; see catalogue_python.py.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from tests.mutants import pytest_outcomes
from tests.mutants.catalogue import Mutant
from tests.mutants.workshop import ROOT, Outcome

PACKAGE = "python/sinkstream"
COMPILED = ("*.so",)
NEEDED = ("sinkstream", "torch", "transformers")
# What tests import, except the package, of which every run has its own copy.
IMPORTED_ONCE = ["pytest", "torch", "transformers.models.llama.modeling_llama", "hypothesis"]
TIMEOUT_S = 240


@dataclass
class ScratchPackage:
    """Runs tests of tests/python on copies of the package. Threads may share one.

    Args:
        killers: All tests that will be needed; they run once together without a mistake.
    """

    killers: Iterable[str] = ()
    _plain: dict[str, Outcome] = field(default_factory=dict)  # of the sources as they are
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, killer: str, mutant: Mutant | None = None) -> Outcome:
        """Run one test on the unchanged package (once) or with a mistake planted.

        Args:
            killer: A pytest node id: "tests/python/evaluate/test_recall.py::test_…".
            mutant: The mistake.
        """
        if mutant is not None:
            return _run([killer], mutant)[killer]
        with self._lock:
            if killer not in self._plain:
                self._plain |= _run(sorted({killer, *self.killers}), None)
            return self._plain[killer]

    def missing(self) -> str | None:
        """Return what this Python lacks to run the tests, or None."""
        lacking = [name for name in NEEDED if find_spec(name) is None]
        return f"{sys.executable} has no {', '.join(lacking)}" if lacking else None


def _run(killers: list[str], mutant: Mutant | None) -> dict[str, Outcome]:
    with tempfile.TemporaryDirectory(prefix="sinkstream-mutant-") as made:
        folder = Path(made)
        _copy_package(folder)
        if mutant is not None:
            file = folder / Path(mutant.file).relative_to(Path(PACKAGE).parent)
            file.write_text(mutant.apply(file.read_text(encoding="utf-8")), encoding="utf-8")
        process = _forks().Process(target=_run_tests, args=(folder, killers))
        process.start()
        process.join(TIMEOUT_S)
        if process.is_alive():
            process.kill()
            process.join()
        ended, output = {}, f"did not finish, or exit code {process.exitcode}\n"
        if (folder / "outcomes.json").exists():
            ended = json.loads((folder / "outcomes.json").read_text(encoding="utf-8"))
        if (folder / "output.txt").exists():
            output = (folder / "output.txt").read_text(encoding="utf-8", errors="replace")
    return {
        killer: Outcome(
            passed=ended.get(killer) == "passed",
            failed=ended.get(killer) == "failed",
            output=output,
        )
        for killer in killers
    }


@cache
def _forks() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED_ONCE)
    return context


def _run_tests(folder: Path, killers: list[str]) -> None:
    """Run tests on the package in `folder`; called in a process of its own."""
    output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(ROOT)
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = str(folder)  # for processes that tests start
    os.environ[pytest_outcomes.FILE_VARIABLE] = str(folder / "outcomes.json")
    # Markers are overridden: a killer may be a slow test.
    options = ["-q", "-m", "", "-p", "no:cacheprovider", "-p", pytest_outcomes.__name__]
    pytest.main([*options, f"--basetemp={folder / 'temp'}", *killers])


def _copy_package(folder: Path) -> None:
    """Copy the sources of this tree and the compiled modules of the installed package."""
    package = folder / Path(PACKAGE).name
    shutil.copytree(ROOT / PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    spec = find_spec("sinkstream")
    assert spec is not None, "see `missing`"
    for installed in spec.submodule_search_locations or ():
        for pattern in COMPILED:
            for file in Path(installed).glob(pattern):
                shutil.copy(file, package)
