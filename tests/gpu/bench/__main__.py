"""Measures the figures with goals on a GPU, job by job, most valuable first.

    python -m tests.gpu.bench FILE --models build/models [--limit-s 480] [--only WORDS] [--rehearse]

FILE is JSON: each subject's figures, and why others are missing. It is rewritten after every
figure. Figures that do not fit in the limit are left out and named. `report.py` makes tables of
the figures and the goals.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.machine import ROOT
from tests.gpu.bench import notes
from tests.gpu.bench.sizes import FULL, GPU, SHORT, Job
from tests.gpu.facts import tree

_LEAST_S = 12.0  # per job: importing torch takes a while
_GRACE_S = 8.0  # after its limit, for a process to end by itself
_LOOK_S = 0.25


class Bench:
    """Runs jobs, and writes the report."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._end = time.monotonic() + args.limit_s
        self.report: notes.Values = {
            "commit": tree(),
            "is_rehearsal": args.rehearse,
            "figures": {},
            "left_out": {},
        }

    def keep(self) -> None:
        """Write the report atomically."""
        unfinished = self._args.file.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(self.report, indent=2) + "\n", encoding="utf-8")
        unfinished.replace(self._args.file)

    def run(self, number: int, job: Job) -> None:
        """Run a job within its limit and the remaining time."""
        limit_s = min(job.limit_s, self._end - time.monotonic() - _GRACE_S)
        if limit_s < _LEAST_S:
            return self._leave_out(job, "no time left")
        with tempfile.TemporaryDirectory() as folder:
            self._follow(
                job, limit_s, Path(folder) / "notes", self._start(number, job, limit_s, folder)
            )

    def _start(self, number: int, job: Job, limit_s: float, folder: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **dict(job.environment)}
        if self._args.rehearse:
            environment["SINKSTREAM_REHEARSAL"] = "1"
        command = [sys.executable, "-m", "tests.gpu.bench.job", str(number), f"{folder}/notes"]
        command += ["--models", str(self._args.models), "--traces", str(self._args.traces)]
        command += ["--limit-s", f"{limit_s:.1f}", "--only", self._args.only]
        return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.STDOUT)

    def _follow(
        self, job: Job, limit_s: float, path: Path, process: subprocess.Popen[bytes]
    ) -> None:
        """Collect a job's results until its process ends or is killed."""
        started, known, end = time.monotonic(), -1, ""
        while True:
            code = process.poll()
            if code is None and time.monotonic() - started > limit_s + _GRACE_S:
                process.kill()
                code = process.wait()
                end = f"it was killed after {limit_s + _GRACE_S:.0f} s"
            elif code:
                end = f"its process ended with {code}"
            lines = notes.read(path)
            if len(lines) > known or code is not None:
                known = len(lines)
                notes.add_to_report(self.report, job.subject, lines, end)
                self.keep()
            if code is not None:
                return self._leave_out(job, "its process had ended")
            time.sleep(_LOOK_S)

    def _leave_out(self, job: Job, reason: str) -> None:
        """Record a reason for a job's figures without values or a reason."""
        for figure in job.figures:
            if figure.name not in self.report["figures"].get(job.subject, {}):
                self.report["left_out"].setdefault(f"{job.subject}: {figure.name}", reason)
        self.keep()

    def has_gpu(self) -> bool:
        """Return whether the first job found a GPU."""
        figures = self.report["figures"].get(GPU, {})
        return "name" in figures.get("gpu", {})

    def errors(self) -> int:
        """Return the number of failed figures."""
        return sum(
            "error" in values
            for figures in self.report["figures"].values()
            for values in figures.values()
        )


def main() -> int:
    """Measure what fits in the limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--models", type=Path, required=True, help="where models are written")
    parser.add_argument("--traces", type=Path, default=None, help="[where FILE is]")
    parser.add_argument("--limit-s", type=float, default=480.0)
    parser.add_argument(
        "--only",
        default="",
        help="comma-separated words: figures whose subject and name contain one of them",
    )
    parser.add_argument("--call", type=int, default=0, help="only the jobs of this call of run.sh")
    parser.add_argument("--rehearse", action="store_true", help="a tiny model and few tokens")
    args = parser.parse_args()
    args.file, args.models = args.file.resolve(), args.models.resolve()
    args.traces = args.traces.resolve() if args.traces else args.file.parent
    every = SHORT if args.rehearse else FULL
    jobs = [job.in_call(args.call).only(args.only) for job in every]
    if not any(job.figures for job in jobs if job.subject != GPU):
        print(f"bench: `--only` must be part of a figure's name, but is {args.only!r}.")
        return 2
    bench = Bench(args)
    for number, job in enumerate(jobs):
        if job.figures:
            bench.run(number, job)
        if not bench.has_gpu():
            print("bench: a GPU is required; see above")
            return 1
    return 1 if bench.errors() else 0


if __name__ == "__main__":
    sys.exit(main())
