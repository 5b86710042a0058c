"""The example runs as users run it: numbers, pictures, and one-sentence errors."""

from __future__ import annotations

import json
import lzma
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from sinkstream.evaluate import PerplexityResult
from tests.python.scripts import module_of

SCRIPT = Path(__file__).parents[3] / "examples" / "eval_long_ppl.py"


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


def test_the_originals_options_write_its_two_files(
    script: ModuleType,
    checkpoint: str,
    prose: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text(prose[:3000])
    options = (
        *("book.txt", "--model_name_or_path", checkpoint, "--threads", "1"),
        *("--enable_start_recent_kv_cache", "--enable_pos_shift"),
        *("--start_size", "4", "--recent_size", "59", "--num_eval_tokens", "300"),
        *("--output_dir", "outputs/debug"),
    )
    script.main(list(options))
    folder = tmp_path / "outputs" / "debug"
    written = json.loads((folder / "eval_long_ppl.json").read_text())
    (result,) = map(PerplexityResult.from_dict, written["results"])
    assert (result.method, result.capacity, result.tokens) == ("sinks", 64, 300)
    nlls = [float(line) for line in (folder / "log.txt").read_text().split()]
    assert len(nlls) == 300
    assert math.exp(sum(nlls) / 300) == pytest.approx(result.perplexity, rel=1e-5)
    assert float((folder / "ppl.txt").read_text()) == pytest.approx(result.perplexity, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--enable_start_recent_kv_cache"], "needs --enable_pos_shift"),
        (["--dataset_name", "pg19"], "--dataset_name"),
    ],
)
def test_what_the_original_has_and_this_script_has_not_is_said(
    script: ModuleType, options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        script.main(["book.txt", *options])
    assert refused.value.code == 2
    assert sentence in capsys.readouterr().err


def test_an_error_is_a_sentence(checkpoint: str, tmp_path: Path) -> None:
    finished = run("missing.txt", "--model", checkpoint, cwd=tmp_path)
    assert finished.returncode == 1
    assert '"missing.txt" must be a readable file' in finished.stderr
    assert "Traceback" not in finished.stderr
