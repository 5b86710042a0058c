"""`sinkstream info`: it shows what the model reports."""

from __future__ import annotations

import json

import pytest
import torch

import sinkstream
from tests.python.cli.conftest import Run


def test_it_shows_model_cache_processor_kernels_and_versions(run: Run, checkpoint: str) -> None:
    outcome = run("info", "-m", checkpoint, "--sinks", "3", "--window", "61", "--json")
    facts = json.loads(outcome.out)
    with sinkstream.load(checkpoint, sinks=3, window=61, max_sequences=1) as model:
        assert facts["model"]["family"] == model.spec.family == "llama"
        assert facts["model"]["layers"] == model.spec.layers
        assert facts["cache"]["capacity"] == 64
        assert facts["cache"]["bytes per token"] == model.capacity.bytes_per_token
        assert model.runtime["served_by"].items() <= facts["kernels"].items()
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["processor"]["name"]


def test_without_a_terminal_it_writes_plain_lines(run: Run, checkpoint: str) -> None:
    outcome = run("info", "-m", checkpoint)
    lines = outcome.out.splitlines()
    assert "cache: sinks: 4" in lines
    assert all(line.count(": ") >= 2 and line.isprintable() for line in lines)


def test_it_says_why_the_system_withholds_a_kernel_table(
    run: Run, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "the kernel gives this process no tile registers"
    monkeypatch.setattr(sinkstream._core, "kernel_refusals", lambda: {"amx": reason})
    assert f"kernels: amx is refused: {reason}" in run("info", "-m", checkpoint).out.splitlines()


def test_a_forced_kernel_table_is_the_one_that_is_shown(
    run: Run, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SINKSTREAM_KERNELS", "generic")
    facts = json.loads(run("info", "-m", checkpoint, "--json").out)
    assert facts["kernels"]["linear"] == "generic"


def test_the_version_is_the_packages(run: Run) -> None:
    assert run("--version").out == f"sinkstream {sinkstream.__version__}\n"
