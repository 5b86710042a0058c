"""Autobahn's cases of the WebSocket protocol, run by its client against an echo.

Its test suite needs Python 2.7: `python2.7` on the path, or what SINKSTREAM_CONFORMANCE_OLD_PYTHON
names. Cases of compression are left out, because the server has none.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conformance.sources import SourceError
from tests.conformance.verdict import Outcome, Verdict, judge, read_list

PYTHON = "SINKSTREAM_CONFORMANCE_OLD_PYTHON"
_PACKAGE = "autobahntestsuite==25.10.1"
_AGENT = "sinkstream"
_LISTED = Path(__file__).parent / "listed.toml"
_ROOT = Path(__file__).parents[3]
_TIMEOUT_S = 1800
# Its packages include one that needs its .pth file.
_START = """
import site, sys
site.addsitedir(sys.argv.pop(1))
from autobahntestsuite import wstest
wstest.run()
"""


def run(cache: Path, selected: str = "") -> Verdict:
    """Run the cases, and compare how they ended with what is listed.

    Args:
        cache: A folder outside the tree for the packages and the report.
        selected: Run only these cases, such as `5.*`; then no listed case is missed.

    Raises:
        SourceError: The suite cannot be run.
    """
    python = _python()
    packages = _installed(python, cache)
    report = cache / "autobahn"
    shutil.rmtree(report, ignore_errors=True)
    with _echoing() as address, tempfile.TemporaryDirectory() as work:
        spec = {
            "outdir": str(report),
            "servers": [{"agent": _AGENT, "url": address.replace("http://", "ws://")}],
            "cases": [selected or "*"],
            "exclude-cases": ["12.*", "13.*"],
        }
        (Path(work) / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
        command = [python, "-c", _START, str(packages), "-m", "fuzzingclient", "-s", "spec.json"]
        done = subprocess.run(
            command,
            cwd=work,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    index = report / "index.json"
    if not index.exists():
        raise SourceError(f"autobahn: its client did not finish: {done.stderr[-2000:]}")
    verdict = judge(outcomes(json.loads(index.read_text(encoding="utf-8"))), read_list(_LISTED))
    if selected:
        verdict.faults = [fault for fault in verdict.faults if "no such test" not in fault]
    return verdict


def outcomes(index: dict[str, dict[str, dict[str, str]]]) -> dict[str, Outcome]:
    """Return how each case ended, the closing handshake included."""
    fine = ("OK", "NON-STRICT", "INFORMATIONAL")
    return {
        case: "passed" if entry["behavior"] in fine and entry["behaviorClose"] in fine else "failed"
        for case, entry in index[_AGENT].items()
    }


def _python() -> str:
    named = os.environ.get(PYTHON) or shutil.which("python2.7")
    if named is None:
        raise SourceError(f"autobahn: needs Python 2.7. Set {PYTHON} to its path.")
    check = [named, "-c", "import sys; sys.exit(sys.version_info[:2] != (2, 7))"]
    if subprocess.run(check, capture_output=True).returncode != 0:
        raise SourceError(f"autobahn: {named} is not Python 2.7. Set {PYTHON} to its path.")
    return named


def _installed(python: str, cache: Path) -> Path:
    """Return a folder with the suite and what it needs, made once."""
    folder = cache / _PACKAGE.replace("==", "-")
    if not (folder / "complete").exists():
        command = [python, "-m", "pip", "install", "--quiet", "--target", str(folder), _PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SourceError(f"autobahn: {_PACKAGE} cannot be installed: {done.stderr[-2000:]}")
        (folder / "complete").touch()
    return folder


@contextmanager
def _echoing() -> Iterator[str]:
    """Run the echo, and yield its address."""
    command = [sys.executable, "-m", "tests.conformance.autobahn.echo_server"]
    process = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(30)
