"""Models in the Hugging Face cache: found without huggingface_hub, where that puts them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sinkstream.checkpoint.stores import hub_cache, locate_model
from sinkstream.errors import CheckpointError
from sinkstream.loading.open_checkpoint import open_checkpoint
from tests.python.checkpoint.gguf_bytes import llama_bytes
from tests.python.checkpoint.store_folders import COMMIT, empty_home, write_snapshot

OTHER = "f" * 40


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    home = empty_home(monkeypatch, tmp_path / "home")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    return home / ".cache" / "huggingface" / "hub"


@pytest.fixture
def files(tiny_folder: Callable[[str], Path]) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in tiny_folder("llama").iterdir()}


def refusal(name: str, revision: str | None = None) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(name, revision=revision).source.close()
    return str(caught.value)


def test_a_repository_is_found_by_its_name(cache: Path, files: dict[str, bytes]) -> None:
    snapshot = write_snapshot(cache, "org/a-name", files)
    assert locate_model("org/a-name") == snapshot
    (stored,) = hub_cache.stored()
    assert (stored.name, stored.find()) == ("org/a-name", snapshot)
    open_checkpoint("org/a-name").source.close()


def test_the_branch_decides_which_snapshot(cache: Path, files: dict[str, bytes]) -> None:
    old = write_snapshot(cache, "org/name", files, commit=OTHER, ref="refs/pr/1")
    new = write_snapshot(cache, "org/name", files)
    assert locate_model("org/name") == locate_model("org/name", "main") == new
    assert locate_model("org/name", "refs/pr/1") == locate_model("org/name", OTHER) == old
    assert 'cache with revision "v2", but is not.' in refusal("org/name", "v2")


@pytest.mark.parametrize(
    "revision", ["../main", "a/../../b", "/etc", "a\0b", ".", "..", "", "a//b"]
)
def test_a_revision_is_never_a_path(cache: Path, files: dict[str, bytes], revision: str) -> None:
    write_snapshot(cache, "org/name", files)
    if revision:
        assert "must be a branch, a tag or a commit, but is" in refusal("org/name", revision)
    else:
        locate_model("org/name", revision)


@pytest.mark.parametrize("content", ["", "../../x", "main", "g" * 40, COMMIT + "/..", "a" * 300])
def test_a_damaged_branch_is_one_sentence(
    cache: Path, files: dict[str, bytes], content: str
) -> None:
    snapshot = write_snapshot(cache, "org/name", files)
    (snapshot.parents[1] / "refs" / "main").write_text(content)
    assert refusal("org/name").count("\n") == 0
    (stored,) = hub_cache.stored()
    with pytest.raises(CheckpointError):
        stored.find()


def test_one_gguf_file_is_the_model_and_of_several_one_is_named(cache: Path) -> None:
    gguf = llama_bytes().build()
    write_snapshot(cache, "org/one", {"m.gguf": gguf, "README.md": b"#"})
    several = write_snapshot(cache, "org/two", {"a.gguf": gguf, "Q8/b.gguf": gguf})
    assert locate_model("org/one").name == "m.gguf"
    assert 'Name one of them: "org/two/a.gguf".' in refusal("org/two")
    assert locate_model("org/two/Q8/b.gguf") == several / "Q8" / "b.gguf"
    assert [stored.name for stored in hub_cache.stored()] == [
        "org/one",
        "org/two/a.gguf",
        "org/two/Q8/b.gguf",
    ]
    for stored in hub_cache.stored():
        open_checkpoint(stored.name).source.close()
    assert "must be a local file, a local folder, or a model in" in refusal("org/two/../x.gguf")


def test_a_download_that_has_not_ended_says_so(cache: Path) -> None:
    snapshot = write_snapshot(cache, "org/name", {"config.json": b"{}"})
    (snapshot / "config.json").unlink()
    (snapshot.parents[1] / "blobs" / "abc.incomplete").touch()
    assert "must be complete, but the Hugging Face cache has only a part" in refusal("org/name")
    assert [stored.name for stored in hub_cache.stored()] == ["org/name"]


def test_a_missing_shard_is_named(cache: Path, tiny_folder: Callable[[str], Path]) -> None:
    files = {path.name: path.read_bytes() for path in tiny_folder("llama-sharded").iterdir()}
    shard = next(name for name in files if name.startswith("model-00002"))
    snapshot = write_snapshot(cache, "org/name", files)
    (snapshot / shard).resolve().unlink()
    assert f'"{shard}" must be a regular file, but is a link to' in refusal("org/name")


def test_other_repositories_are_not_models(cache: Path) -> None:
    write_snapshot(cache, "org/tokenizer", {"tokenizer.json": b"{}"})
    for name in ("datasets--org--name", "models--gpt2", ".locks", "models--a"):
        (cache / name).mkdir(parents=True)
    assert list(hub_cache.stored()) == []


def test_a_name_that_is_not_there_lists_close_ones(cache: Path, files: dict[str, bytes]) -> None:
    write_snapshot(cache, "org/name", files)
    assert 'but is not. Did you mean "org/name"? Set `download`' in refusal("org/names")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"HF_HOME": "{folder}/a"},
        {"HF_HUB_CACHE": "{folder}/b", "HF_HOME": "{folder}/a"},
        {"HUGGINGFACE_HUB_CACHE": "{folder}/c"},
        {"XDG_CACHE_HOME": "{folder}/d"},
        {"HF_HOME": "~/e"},
        {"HF_HUB_CACHE": "$HOME/f"},
    ],
)
def test_the_cache_is_where_huggingface_hub_puts_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: dict[str, str]
) -> None:
    pytest.importorskip("tokenizers")
    for name, value in settings.items():
        monkeypatch.setenv(name, value.format(folder=tmp_path))
    code = "from huggingface_hub.constants import HF_HUB_CACHE; print(HF_HUB_CACHE)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ)
    )
    if done.returncode != 0:
        pytest.skip("huggingface_hub is not installed")
    assert str(hub_cache.root()) == done.stdout.strip()
