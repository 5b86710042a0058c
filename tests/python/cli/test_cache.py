"""`sinkstream pack` and `cache`: packed weights are written ahead, listed and removed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import sinkstream
from tests.python.cli.conftest import Run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SINKSTREAM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model_file(tiny_gguf: Callable[[str, str], Path], tmp_path: Path) -> Path:
    return shutil.copy(tiny_gguf("llama", "F16"), tmp_path / "m.gguf")


def listed(run: Run) -> list[dict[str, object]]:
    outcome = run("cache", "--json")
    assert outcome.code == 0
    files: list[dict[str, object]] = json.loads(outcome.out)["files"]
    return files


def test_a_packed_model_is_mapped_by_its_first_load(
    run: Run, folder: Path, model_file: Path
) -> None:
    outcome = run("pack", str(model_file))
    assert outcome.code == 0, outcome.err
    (row,) = listed(run)
    assert outcome.out.startswith(f"{row['path']}: ")
    assert (row["name"], row["source"]) == ("m.gguf", str(model_file))
    with sinkstream.load(model_file, window=60, max_sequences=1, cache=folder) as model:
        assert model.capacity.mapped_weight_bytes == model.capacity.weight_bytes
        assert "mapped from a file" in str(model.capacity)
    assert run("pack", str(model_file)).code == 0  # again, in the place of the first
    assert len(listed(run)) == 1


def test_files_are_listed_and_removed(run: Run, folder: Path, model_file: Path) -> None:
    assert run("cache").out == f"No packed weights in {folder}.\n"
    run("pack", str(model_file))
    run("pack", str(model_file), "--quantize", "int8")
    title, first, second, total = run("cache").out.splitlines()
    assert title.split() == ["key", "size", "used", "model"]
    assert first.endswith("m.gguf as Q8_0")
    assert second.endswith("m.gguf")
    assert total.startswith("2 files, ")
    assert total.endswith(f" of at most 64.0 GB, in {folder}.")
    outcome = run("cache", "--remove", first.split()[0])
    assert "Removed 1 file, " in outcome.out
    assert [row["quantize"] for row in listed(run)] == [None]
    assert run("cache", "--remove", "m.gguf").code == 0
    assert list(folder.iterdir()) == []
    outcome = run("cache", "--remove", "m.gguf")
    assert outcome.code == 2
    assert "cache: `--remove` must be the key or the name of a file" in outcome.err


def test_all_files_are_removed(run: Run, folder: Path, model_file: Path) -> None:
    run("pack", str(model_file))
    (folder / f"{'0' * 32}.panels").write_bytes(b"of something else")
    assert "of another version, or damaged" in run("cache").out
    assert "Removed 2 files, " in run("cache", "--clear").out
    assert list(folder.iterdir()) == []


def test_a_file_that_is_too_large_for_the_limit_is_refused(
    run: Run, folder: Path, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SINKSTREAM_CACHE_LIMIT_GB", "0")
    outcome = run("pack", str(model_file))
    assert outcome.code == 2
    assert "pack: $SINKSTREAM_CACHE_LIMIT_GB must be at least " in outcome.err


def test_without_a_folder_nothing_is_packed(
    run: Run, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SINKSTREAM_CACHE", "")
    outcome = run("pack", str(model_file))
    assert outcome.code == 2
    assert "pack: $SINKSTREAM_CACHE must name a folder" in outcome.err
    assert run("cache").out == "Packed weights are not kept: $SINKSTREAM_CACHE is empty.\n"


def test_info_tells_mapped_from_allocated(
    run: Run, folder: Path, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinkstream.loading.panels.LEAST_BYTES", 0)
    assert "allocated, a token reads" in run("info", str(model_file)).out
    run("pack", str(model_file))
    assert "mapped from a file, a token reads" in run("info", str(model_file)).out
    assert "allocated, a token reads" in run("info", str(model_file), "--no-cache").out
