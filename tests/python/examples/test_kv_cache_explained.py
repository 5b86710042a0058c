"""The example runs as users run it, and shows the promised curves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.python.scripts import module_of

SCRIPT = Path(__file__).parents[3] / "examples" / "kv_cache_explained.py"


def run(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """Give the example as a module: a process would import torch once more."""
    return module_of(SCRIPT)


def test_table_and_picture_are_made(tiny_folder: Callable[[str], Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    finished = run(tiny_folder("llama"), "--tokens", "9", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    rows = [line.split() for line in finished.stdout.splitlines() if line.rstrip().endswith(" x")]
    assert [row[0] for row in rows] == ["1", "2", "4", "8", "9"]
    picture = (tmp_path / "kv_cache_explained.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000


def test_without_matplotlib_there_is_still_a_table(
    script: ModuleType,
    tiny_folder: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    monkeypatch.chdir(tmp_path)
    script.main([str(tiny_folder("llama")), "--tokens", "3"])
    out = capsys.readouterr().out
    assert "ratio of totals" in out
    assert "pip install matplotlib" in out
    assert not (tmp_path / "kv_cache_explained.png").exists()


def test_number_of_tokens_below_one_is_refused(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        script.main(["--tokens", "0"])
    assert refused.value.code == 2
    assert "--tokens must be at least 1, but is 0." in capsys.readouterr().err


def test_smollm2_is_measured_to_the_last_token(
    script: ModuleType, smollm2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.main([str(smollm2), "--tokens", "8", "--png", str(tmp_path / "curves.png")])
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.rstrip().endswith(" x")]
    assert rows[-1][0] == "8"
    # A table of times shows which is faster; a busy machine would make a test of it fail.
    assert float(rows[-1][-2]) > 0
