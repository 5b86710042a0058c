"""A server process killed in the middle of a reply: another one continues, bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def takeover(kills: int) -> dict[str, float]:
    script = [sys.executable, "benchmarks/takeover_bench.py", "--kills", str(kills)]
    said = subprocess.run(script, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    figures: dict[str, float] = json.loads(said)
    return figures


@pytest.mark.parametrize("kills", [1, pytest.param(100, marks=pytest.mark.slow)])
def test_nothing_that_was_acknowledged_is_lost(kills: int) -> None:
    figures = takeover(kills)
    assert figures["acknowledged_turns"] == 3 * kills
    assert figures["missing_turns"] == 0
    assert figures["replies_that_differ"] == 0
