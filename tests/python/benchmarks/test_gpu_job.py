"""`tests/gpu/bench/`: a figure or process that fails or hangs costs no other figure."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.gpu.bench import __main__ as program
from tests.gpu.bench import notes
from tests.gpu.bench.job import Runner
from tests.gpu.bench.limits import LeftOut, OutOfTime, at_most
from tests.gpu.bench.sizes import Job, Prefill

pytestmark = pytest.mark.full


def test_a_limit_ends_what_waits_and_nothing_afterwards() -> None:
    started = time.monotonic()
    with pytest.raises(OutOfTime), at_most(0.05):
        time.sleep(30)
    assert time.monotonic() - started < 10
    with at_most(0.05):
        pass
    time.sleep(0.1)


def fail() -> notes.Values:
    raise ValueError("it does not work")


def leave_out() -> notes.Values:
    raise LeftOut("there is no such thing here")


def wait_forever() -> notes.Values:
    while True:
        time.sleep(0.01)


def test_figures_go_on_after_those_that_fail_or_never_end(tmp_path: Path) -> None:
    runner = Runner(notes.Notes(tmp_path / "notes", "a model"), limit_s=60)
    assert not runner.measure("fails", 9, fail)
    assert not runner.measure("is left out", 9, leave_out)
    assert not runner.measure("waits", 1, wait_forever)
    assert runner.measure("works", 9, lambda: {"tokens_per_s": 7})
    found: notes.Values = {"figures": {}, "left_out": {}}
    notes.add_to_report(found, "a model", notes.read(tmp_path / "notes"), "")
    assert found["figures"]["a model"] == {
        "fails": {"error": "ValueError: it does not work"},
        "waits": {"error": "it took longer than 1 s"},
        "works": {"tokens_per_s": 7},
    }
    assert found["left_out"] == {"a model: is left out": "there is no such thing here"}


def test_what_no_time_is_left_for_is_not_begun(tmp_path: Path) -> None:
    runner = Runner(notes.Notes(tmp_path / "notes", "a model"), limit_s=0.5)
    assert not runner.measure("late", 9, wait_forever)
    assert [line["kind"] for line in notes.read(tmp_path / "notes")] == ["left out"]


JOB = Job("a model", (Prefill(1), Prefill(2), Prefill(3)), limit_s=30)
NOTES = """
import os, sys, time
from pathlib import Path
from tests.gpu.bench.notes import Notes
notes = Notes(Path(sys.argv[1]), "a model")
notes.add("begun", "prefill 1")
notes.add("found", "prefill 1", {"tokens_per_s": 5})
notes.add("begun", "prefill 2")
"""


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, limit_s: float) -> notes.Values:
    """Return the report of a process that ends during its second figure."""

    def start(self: program.Bench, number: int, job: Job, limit_s: float, folder: str) -> object:
        return subprocess.Popen([sys.executable, "-c", NOTES + end, f"{folder}/notes"])

    monkeypatch.setattr(program, "_GRACE_S", 0.0)
    monkeypatch.setattr(program, "_LEAST_S", 1.0)
    monkeypatch.setattr(program.Bench, "_start", start)
    args = argparse.Namespace(limit_s=limit_s, rehearse=True, file=tmp_path / "bench.json")
    bench = program.Bench(args)
    bench.run(0, JOB)
    assert args.file.exists()
    return bench.report


@pytest.mark.parametrize(
    ("end", "limit_s", "error"),
    [
        ("os.kill(os.getpid(), 11)", 60, "its process ended with -11"),
        ("time.sleep(60)", 5, "it was killed after"),
    ],
)
def test_a_process_that_crashes_or_hangs_leaves_what_it_had_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, limit_s: float, error: str
) -> None:
    report = run(tmp_path, monkeypatch, end, limit_s)
    figures = report["figures"]["a model"]
    assert figures["prefill 1"] == {"tokens_per_s": 5}
    assert figures["prefill 2"]["error"].startswith(error)
    assert report["left_out"] == {"a model: prefill 3": "its process had ended"}


def test_a_job_that_no_time_is_left_for_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run(tmp_path, monkeypatch, "", limit_s=0.5)
    assert report["figures"] == {}
    assert set(report["left_out"].values()) == {"no time left"}
    assert len(report["left_out"]) == 3
