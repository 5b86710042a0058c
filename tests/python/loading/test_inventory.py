"""The models on this machine: each with the name that loads it, or with the error of `load`."""

from __future__ import annotations

import json
import os
import shutil
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream.checkpoint.bounded_file import File
from sinkstream.checkpoint.stores import ollama, packages
from sinkstream.errors import CheckpointError, InvalidArgument
from sinkstream.loading import inventory
from tests.data import tiny
from tests.python.checkpoint.gguf_bytes import STRING, GgufBytes, llama_bytes
from tests.python.checkpoint.split_files import write_parts
from tests.python.checkpoint.store_folders import (
    empty_home,
    layer,
    write_ollama,
    write_snapshot,
)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(ollama, "_SERVICE", tmp_path / "service")
    monkeypatch.setattr(packages, "PACKAGES", {})
    return empty_home(monkeypatch, tmp_path / "home")


def by_name(*folders: Path) -> dict[str, sinkstream.ListedModel]:
    return {model.name: model for model in sinkstream.list_models(*folders)}


def test_nothing_is_an_empty_list(home: Path) -> None:
    assert sinkstream.list_models() == []


def test_the_packaged_model_is_listed(smollm2: Path) -> None:
    (row,) = [model for model in sinkstream.list_models() if model.store == "package"]
    assert (row.name, row.path, row.loads) == ("smollm2", str(smollm2), True)
    assert (row.family, row.quantization) == ("llama", "Q4_1")


def test_every_row_loads_by_its_name_or_has_the_error_of_load(
    home: Path, tmp_path: Path, tiny_folder: Callable[[str], Path]
) -> None:
    root = home / ".ollama" / "models"
    good = tiny.write_gguf(tiny.build("llama"), tmp_path / "g.gguf", "Q8_0").read_bytes()
    other = GgufBytes().add("general.architecture", STRING, "gemma3").build()
    write_ollama(root, content=good)
    write_ollama(root, "registry.ollama.ai/library/gemma3/1b", content=other)
    write_ollama(
        root,
        "registry.ollama.ai/user/tuned/latest",
        lambda m: m["layers"].append(layer("adapter", "sha256:" + "0" * 64, 1)),
    )
    studio = home / ".lmstudio" / "models" / "pub" / "repo"
    broken = studio.with_name("broken")
    for folder in (studio, broken):
        folder.mkdir(parents=True)
        write_parts(folder)
    (broken / "m-00002-of-00003.gguf").unlink()
    files = {path.name: path.read_bytes() for path in tiny_folder("qwen3").iterdir()}
    write_snapshot(home / ".cache" / "huggingface" / "hub", "org/name", files)
    unknown = llama_bytes().add("tokenizer.ggml.model", STRING, "gpt2")
    unknown.add_array("tokenizer.ggml.tokens", STRING, list("abcde"))
    own = tmp_path / "own" / "deep"
    own.mkdir(parents=True)
    unknown.add("tokenizer.ggml.pre", STRING, "unheard-of").write(own / "pre.gguf")
    shutil.copytree(tiny_folder("llama"), own / "folder")

    rows = by_name(tmp_path / "own")
    assert {name: row.loads for name, row in rows.items()} == {
        "ollama:llama3.2": True,
        "ollama:gemma3:1b": False,
        "ollama:user/tuned": False,
        "lmstudio:pub/repo": True,
        "lmstudio:pub/broken": False,
        "org/name": True,
        str(own / "pre.gguf"): False,
        str(own / "folder"): True,
    }
    for name, row in rows.items():
        if row.loads:
            with sinkstream.load(name, max_sequences=1) as model:
                assert model.spec.family == row.family
                assert model.path == row.path
        else:
            with pytest.raises(CheckpointError) as caught:
                sinkstream.load(name)
            assert row.problem == str(caught.value)
    assert rows["ollama:gemma3:1b"].family == "gemma3"
    assert rows["ollama:user/tuned"].path is None
    assert rows["org/name"].store == "huggingface"


def test_folders_of_the_environment_are_searched(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        llama_bytes().write(tmp_path / name / "m.gguf")
    monkeypatch.setenv("SINKSTREAM_MODELS", f"{tmp_path}/a:{tmp_path}/b:{tmp_path}/gone:")
    assert list(by_name()) == [f"{tmp_path}/a/m.gguf", f"{tmp_path}/b/m.gguf"]
    assert list(by_name(tmp_path / "a")) == list(by_name())  # each only once


def test_a_folder_of_ollama_that_it_does_not_use_is_read(home: Path, tmp_path: Path) -> None:
    path = write_ollama(tmp_path / "disk" / "models")
    for folder in (tmp_path / "disk", tmp_path / "disk" / "models"):
        ((name, row),) = by_name(folder).items()
        assert name == str(path)
        assert row.loads
    sinkstream.load(str(path), max_sequences=1).close()


def test_a_file_may_be_given(home: Path, tmp_path: Path) -> None:
    path = llama_bytes().write(tmp_path / "m.gguf")
    assert list(by_name(path)) == [str(path)]


def test_a_folder_that_does_not_exist_is_an_error(home: Path) -> None:
    with pytest.raises(InvalidArgument, match='a folder must exist, but "/no/such" does not'):
        sinkstream.list_models("/no/such")


def test_a_folder_that_may_not_be_read_is_named(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "service"
    scandir, stat = os.scandir, Path.stat

    def guarded_scandir(path: Any) -> Any:
        if str(path).startswith(str(closed)):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    def guarded_stat(self: Path, **options: Any) -> Any:
        if str(self).startswith(str(closed)):
            raise PermissionError(13, "Permission denied", str(self))
        return stat(self, **options)

    monkeypatch.setattr(os, "scandir", guarded_scandir)
    monkeypatch.setattr(Path, "stat", guarded_stat)
    monkeypatch.setenv("HF_HUB_CACHE", str(closed / "hub"))
    with pytest.warns(UserWarning, match=r"/service.* should be readable, but is not"):
        assert sinkstream.list_models() == []
    for name in ("org/name", "ollama:x", "lmstudio:a/b", str(closed / "m.gguf")):
        with pytest.raises(CheckpointError):
            sinkstream.load(name)


def test_links_in_a_loop_end(home: Path, tmp_path: Path) -> None:
    llama_bytes().write(tmp_path / "m.gguf")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert list(by_name(tmp_path)) == [str(tmp_path / "m.gguf")]


def test_weights_are_not_read(
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tiny_folder: Callable[[str], Path],
) -> None:
    """Not even to compare an output head with the embedding, as loading a folder does."""
    most = 0
    read = File.read

    def counted(self: File, begin: int, count: int, what: str) -> bytes:
        nonlocal most
        most = max(most, begin + count)
        assert not what.startswith("tensor"), what
        return read(self, begin, count, what)

    own = tmp_path / "own"
    shutil.copytree(tiny_folder("llama"), own / "tied")
    llama_bytes().write(own / "m.gguf")
    config = json.loads((own / "tied" / "config.json").read_text())
    (own / "tied" / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    monkeypatch.setattr(File, "read", counted)
    assert all(row.loads for row in sinkstream.list_models(own))
    assert most > 0


def test_warnings_of_models_are_not_shown(home: Path, tmp_path: Path) -> None:
    llama_bytes().add_tensor("mtp.weight", (4,), bytes(16)).write(tmp_path / "m.gguf")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert by_name(tmp_path)[str(tmp_path / "m.gguf")].loads


def test_a_thousand_files_take_seconds(home: Path, tmp_path: Path) -> None:
    content = llama_bytes().build()
    for number in range(1000):
        (tmp_path / f"{number}.gguf").write_bytes(content if number % 2 else content[:-64])
    steps: list[tuple[int, int]] = []
    begin = time.process_time()
    rows = sinkstream.list_models(tmp_path, progress=lambda *step: steps.append(step))
    assert time.process_time() - begin < 8  # 1.5 on an idle machine
    assert sum(row.loads for row in rows) == 500
    assert steps[-1] == (1000, 1000)
    assert steps == sorted(steps)


def test_a_model_that_goes_while_it_is_listed_is_no_error(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = llama_bytes().write(tmp_path / "m.gguf")
    opening = inventory.open_tensors

    def remove(found: Path, **options: Any) -> Any:
        path.unlink()
        return opening(found, **options)

    monkeypatch.setattr(inventory, "open_tensors", remove)
    (row,) = sinkstream.list_models(tmp_path)
    assert not row.loads
