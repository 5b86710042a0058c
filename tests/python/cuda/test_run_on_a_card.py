"""tests/gpu/run.sh, rehearsed on an emulated card, so that it works on the day of a real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


def rehearse(out: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Return the exit status and the JSON."""
    done = subprocess.run(
        [ROOT / "tests/gpu/run.sh", "--rehearse", *options],
        env=os.environ
        | {
            "OUT": str(out),
            "PYTHON": sys.executable,
            "PYTHONPATH": ":".join(filter(None, sys.path)),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (out / "gpu.json").exists(), done.stdout + done.stderr
    return done.returncode, json.loads((out / "gpu.json").read_text(encoding="utf-8"))


def test_a_rehearsal_tests_and_measures(card: Path, tmp_path: Path) -> None:
    assert card.exists()
    status, report = rehearse(
        tmp_path, "--only", "facts,tests,sanitizer,bench", "--tests", "storm or decode_equals"
    )
    text = (tmp_path / "gpu.txt").read_text(encoding="utf-8")
    assert status == 0, text
    assert [part["status"] for part in report["parts"]] == ["ok"] * 4
    assert report["tests"] == {"passed": 2, "failed": [], "skipped": []}
    figures = report["bench"]["models"]["tiny F32"]
    assert {"rate 1", "rate 2", "prefill 24", "between tokens"} < figures.keys()
    assert figures["between tokens"]["evicted_tokens"] > 12
    # Nothing that an emulated card does may be taken for a figure.
    assert report["bench"]["is_rehearsal"]
    assert "a rehearsal: no figures of a card" in text


def test_a_part_that_fails_is_said_so_and_the_next_one_goes_on(card: Path, tmp_path: Path) -> None:
    assert card.exists()
    with_no_tests = ("--tests", "what_no_test_is_called")
    status, report = rehearse(tmp_path, "--only", "facts,tests,sanitizer", *with_no_tests)
    assert status == 1
    ends = [(part["name"], part["status"]) for part in report["parts"]]
    assert ends == [("facts", "ok"), ("tests", "failed"), ("sanitizer", "ok")]
