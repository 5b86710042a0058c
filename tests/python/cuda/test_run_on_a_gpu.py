"""tests/gpu/run.sh, rehearsed on an emulated GPU, so that it works on a real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.bench.sizes import SHORT

ROOT = Path(__file__).parents[3]
RESULTS = {"gpu.json", "gpu.txt", "bench.json", "logs.tar.gz"}


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


@pytest.mark.full  # the next one runs three of its parts: all but the sanitizer and most figures
def test_a_rehearsal_tests_and_measures(gpu: Path, tmp_path: Path) -> None:
    assert gpu.exists()
    status, report = rehearse(
        tmp_path, "--only", "facts,tests,sanitizer,bench", "--tests", "storm or decode_equals"
    )
    text = (tmp_path / "gpu.txt").read_text(encoding="utf-8")
    assert status == 0, text
    assert [(part["name"], part["status"]) for part in report["parts"]] == [
        (name, "ok") for name in ("facts", "tests", "sanitizer-models", "sanitizer", "bench")
    ]
    assert report["tests"] == {"passed": 2, "failed": [], "skipped": []}
    bench = report["bench"]
    assert bench["left_out"] == {}
    measured = {
        f"{subject}: {name}" for subject, figures in bench["figures"].items() for name in figures
    }
    assert {f"{job.subject}: {figure.name}" for job in SHORT for figure in job.figures} <= measured
    model = bench["figures"]["tiny BF16"]
    assert model["rate 2 at 16"]["evicted_tokens"] > 0
    between = bench["figures"]["tiny BF16 batches"]["between tokens"]
    assert between["count"] == 20
    assert between["evicted_tokens"] > 12
    assert model["trace penalties"]["kernels_us"].keys() > {"sample_kernel"}
    assert {path.name for path in tmp_path.iterdir()} == RESULTS
    with tarfile.open(tmp_path / "logs.tar.gz") as logs:
        names = {Path(name).name for name in logs.getnames()}
    assert names >= {"facts.log", "tests.log", "sanitizer.log", "bench.log"}
    assert "trace-tiny-BF16-penalties.json" in names
    # An emulated GPU's results must not count as figures.
    assert bench["is_rehearsal"]
    assert model["trace penalties"]["is_simulated"]
    assert {goal["verdict"] for goal in report["goals"]} == {"not measured"}
    assert "a rehearsal: no figures of a GPU" in text


def test_a_part_that_fails_is_said_so_and_the_next_one_goes_on(gpu: Path, tmp_path: Path) -> None:
    assert gpu.exists()
    options = ("--tests", "what_no_test_is_called", "--bench", "prefill")
    status, report = rehearse(tmp_path, "--only", "facts,tests,bench", *options)
    assert status == 1
    ends = [(part["name"], part["status"]) for part in report["parts"]]
    assert ends == [("facts", "ok"), ("tests", "failed"), ("bench", "ok")]
    # The requested figures, and the ceilings that they are shares of.
    found = report["bench"]["figures"]
    assert found.keys() == {"gpu", "tiny BF16"}
    assert found["gpu"].keys() == {"gpu", "copy", "read", "product", "replay", "argmax"}
    assert found["tiny BF16"].keys() == {"file", "load", "prefill 24", "prefill 24 next to 1"}


@pytest.mark.parametrize("missing", ["folder", "wheels", "gpu"])
def test_a_rehearsal_in_an_empty_folder_says_what_it_lacks(tmp_path: Path, missing: str) -> None:
    folder, wheels, gpu = tmp_path / "machine", tmp_path / "wheels", tmp_path / "gpu.so"
    if missing == "folder":
        folder.mkdir()
    if missing != "wheels":
        wheels.mkdir()
    if missing != "gpu":
        gpu.touch()
    sentences = {
        "folder": f"FOLDER must be new, but {folder} exists.",
        "wheels": f"--wheels must be a folder, but {wheels} is not.",
        "gpu": f"--gpu must be a file, but {gpu} is not.",
    }
    command = [sys.executable, "-m", "tests.gpu.rehearse", str(folder)]
    done = subprocess.run(
        [*command, "--wheels", str(wheels), "--gpu", str(gpu)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, sentences[missing] in done.stderr) == (2, True), done.stderr
    assert missing == "folder" or not folder.exists()
