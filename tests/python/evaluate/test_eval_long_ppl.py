"""The example runs as users run it: numbers, pictures, and one-sentence errors."""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sinkstream.evaluate import PerplexityResult

SCRIPT = Path(__file__).parents[3] / "examples" / "eval_long_ppl.py"


def run(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_numbers_and_pictures_of_a_book_are_written(
    checkpoint: str, prose: str, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    line = json.dumps({"title": "Copperfield", "text": prose[:3000]})
    (tmp_path / "books.jsonl.xz").write_bytes(lzma.compress(line.encode()))
    finished = run(
        *("books.jsonl.xz", "--title", "Copperfield", "--model", checkpoint, "--threads", "1"),
        *("--methods", "sinks,window,dense,recompute", "--window", "60", "--tokens", "400"),
        *("--sample", "9"),
        cwd=tmp_path,
    )
    assert finished.returncode == 0, finished.stderr
    written = json.loads((tmp_path / "eval_long_ppl.json").read_text())
    results = [PerplexityResult.from_dict(entry) for entry in written["results"]]
    assert [result.method for result in results] == ["sinks", "window", "dense", "recompute"]
    assert [result.tokens for result in results] == [399, 399, 399, 9]
    assert [result.capacity for result in results] == [64, 64, 399, 64]
    assert written["book"] == "Copperfield"
    assert finished.stdout.count("nats against recompute") == 3
    for name in ("eval_long_ppl.png", "eval_long_ppl.svg", "eval_long_ppl_cost.png"):
        assert (tmp_path / name).stat().st_size > 10_000


def test_an_error_is_a_sentence(checkpoint: str, tmp_path: Path) -> None:
    finished = run("missing.txt", "--model", checkpoint, cwd=tmp_path)
    assert finished.returncode == 1
    assert '"missing.txt" must be a readable file' in finished.stderr
    assert "Traceback" not in finished.stderr
