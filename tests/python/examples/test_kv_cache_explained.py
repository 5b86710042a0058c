"""The example runs as users run it, and shows the promised curves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

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
    tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "matplotlib.py").write_text(
        'raise ModuleNotFoundError("No module named matplotlib", name="matplotlib")'
    )
    monkeypatch.setenv("PYTHONPATH", str(hidden))
    finished = run(tiny_folder("llama"), "--tokens", "3", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert "ratio of totals" in finished.stdout
    assert 'pip install "sinkstream[plot]"' in finished.stdout
    assert not (tmp_path / "kv_cache_explained.png").exists()


def test_number_of_tokens_below_one_is_refused(tmp_path: Path) -> None:
    finished = run("--tokens", "0", cwd=tmp_path)
    assert finished.returncode == 2
    assert "--tokens must be at least 1, but is 0." in finished.stderr


def test_smollm2_is_measured_to_the_last_token(smollm2: Path, tmp_path: Path) -> None:
    finished = run(smollm2, "--tokens", "32", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    rows = [line.split() for line in finished.stdout.splitlines() if line.rstrip().endswith(" x")]
    assert rows[-1][0] == "32"
    # A table of times shows which is faster; a busy machine would make a test of it fail.
    assert float(rows[-1][-2]) > 0
