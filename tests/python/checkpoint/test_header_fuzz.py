"""Random headers, parts, manifests and caches give a model or one sentence, in little memory."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.python.checkpoint import header_fuzz

ROOT = Path(__file__).parents[3]


def fuzz(part: str, cases: int, seed: int) -> str:
    """Draw cases in a process of its own, whose memory is limited."""
    words = ["--part", part, "--cases", str(cases), "--seed", str(seed)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.python.checkpoint.header_fuzz", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout


@pytest.mark.parametrize("part", header_fuzz.PARTS)
def test_no_random_header_breaks_the_reader(part: str) -> None:
    counts = dict(re.findall(r"'(\w+)': (\d+)", fuzz(part, 150, 0)))
    assert int(counts["refused"]) > 10
    assert int(counts["opened"]) > 10  # some cases reach the end


@pytest.mark.slow
@pytest.mark.parametrize("part", header_fuzz.PARTS)
def test_many_random_headers(part: str) -> None:
    fuzz(part, 5000, 1000)
