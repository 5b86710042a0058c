"""Weights are read in the background while the tokenizer is built, and either may fail."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream.checkpoint.checkpoint import Extent, FileSource, TensorsOnly, TensorSource
from sinkstream.loading import load as loading

Write = Callable[..., Path]


@pytest.fixture
def model_file(tmp_path: Path, tiny_gguf: Write) -> Path:
    """Give a model file that a test may damage."""
    copy = tmp_path / "m.gguf"
    copy.write_bytes(tiny_gguf("llama", "Q8_0").read_bytes())
    return copy


def open_files(path: Path) -> int:
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            found += link.readlink() == path
        except OSError:  # the descriptor of the folder itself
            continue
    return found


def reading_threads() -> int:
    names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
    return sum(name.startswith("sinkstream read") for name in names)


def test_a_file_that_shrinks_before_it_is_read_is_an_error_that_names_the_tensor(
    model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shrink(*args: Any) -> None:
        os.truncate(model_file, model_file.stat().st_size - 64)
        begin(*args)

    begin = loading._begin_to_read
    monkeypatch.setattr(loading, "_begin_to_read", shrink)
    with pytest.raises(
        sinkstream.CheckpointError,
        match=r'm\.gguf must hold \d+ bytes for tensor "\S+" from byte \d+ on, but is \d+ bytes',
    ):
        sinkstream.load(model_file)
    assert open_files(model_file) == reading_threads() == 0


def test_a_file_that_could_not_be_read_and_then_could_has_changed(
    model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(self: FileSource, tensor: TensorSource) -> tuple[Extent, ...]:
        return tuple(replace(extent, descriptor=-1) for extent in extents(self, tensor))

    extents = FileSource.extents
    monkeypatch.setattr(FileSource, "extents", nowhere)
    with pytest.raises(
        sinkstream.CheckpointError, match="could not be read at first, but could be read later"
    ):
        sinkstream.load(model_file)


def test_a_tokenizer_that_is_wrong_ends_the_reading_and_closes_the_file(
    model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(opened: TensorsOnly) -> None:
        assert open_files(model_file) == 1
        raise sinkstream.CheckpointError("load: the tokenizer is wrong.")

    monkeypatch.setattr(loading, "with_text", fail)
    with pytest.raises(sinkstream.CheckpointError, match="the tokenizer is wrong"):
        sinkstream.load(model_file)
    assert open_files(model_file) == reading_threads() == 0


def test_a_description_that_is_refused_closes_the_file(
    model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fields: Any) -> None:
        assert open_files(model_file) == 1
        raise sinkstream.CheckpointError("load: the description is wrong.")

    monkeypatch.setattr(loading._core, "ModelBuilder", refuse)
    with pytest.raises(sinkstream.CheckpointError, match="the description is wrong"):
        sinkstream.load(model_file)
    assert open_files(model_file) == 0


def test_a_progress_callback_may_abort_the_load(model_file: Path) -> None:
    class EnoughError(Exception):
        pass

    def watch(done: int, total: int) -> None:
        raise EnoughError

    with pytest.raises(EnoughError):
        sinkstream.load(model_file, progress=watch)
    assert open_files(model_file) == reading_threads() == 0


def test_a_loaded_model_keeps_no_vocabulary_but_the_tokenizers_own(model_file: Path) -> None:
    with sinkstream.load(model_file) as model:
        assert not model._text.vocabulary
        assert model._text.tokenizer is not None


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_threads_change_no_weight(
    model_file: Path, threads: int, recwarn: pytest.WarningsRecorder
) -> None:
    with sinkstream.load(model_file) as model:
        expected = model.generate([1, 2, 3], max_tokens=20, temperature=0, ignore_eos=True)
    with sinkstream.load(model_file, threads=threads) as model:
        found = model.generate([1, 2, 3], max_tokens=20, temperature=0, ignore_eos=True)
    assert found.token_ids == expected.token_ids
