"""Models that LM Studio has: by publisher, repository and, if there are several, file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sinkstream.checkpoint.stores import lm_studio, locate_model
from sinkstream.errors import CheckpointError
from sinkstream.loading.open_checkpoint import open_checkpoint
from tests.python.checkpoint.gguf_bytes import llama_bytes
from tests.python.checkpoint.split_files import write_parts
from tests.python.checkpoint.store_folders import empty_home


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return empty_home(monkeypatch, tmp_path / "home")


def write(root: Path, *files: str) -> list[Path]:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        llama_bytes().write(root / file)
    return [root / file for file in files]


@pytest.mark.parametrize("folder", [".lmstudio/models", ".cache/lm-studio/models"])
def test_the_only_file_of_a_repository_needs_no_name(home: Path, folder: str) -> None:
    (path,) = write(home / folder, "pub/repo/m-Q4_K_M.gguf")
    (stored,) = lm_studio.stored()
    assert (stored.name, stored.find()) == ("lmstudio:pub/repo", path)
    assert locate_model("lmstudio:pub/repo") == locate_model("lmstudio:Pub/Repo") == path
    assert locate_model("lmstudio:pub/repo/m-Q4_K_M.gguf") == path
    open_checkpoint("lmstudio:pub/repo").source.close()


def test_the_folder_may_be_moved(home: Path, tmp_path: Path) -> None:
    (home / ".lmstudio-home-pointer").write_text(f"{tmp_path}/moved\n")
    write(tmp_path / "moved" / "models", "pub/one/m.gguf")
    (tmp_path / "moved" / "settings.json").write_text(
        json.dumps({"downloadsFolder": str(tmp_path / "chosen")})
    )
    write(tmp_path / "chosen", "pub/two/m.gguf")
    names = {stored.name for stored in lm_studio.stored()}
    assert names == {"lmstudio:pub/one", "lmstudio:pub/two"}
    for name in names:
        locate_model(name)


@pytest.mark.parametrize("content", [b"", b"\xff", b"\0", b"x" * 10_000, b"{", b"[]"])
def test_damaged_settings_are_ignored(home: Path, content: bytes) -> None:
    write(home / ".lmstudio" / "models", "pub/repo/m.gguf")
    (home / ".lmstudio-home-pointer").write_bytes(content)
    (home / ".lmstudio" / "settings.json").write_bytes(content)
    assert [stored.name for stored in lm_studio.stored()] == ["lmstudio:pub/repo"]


def test_several_files_are_named(home: Path) -> None:
    root = home / ".lmstudio" / "models"
    paths = write(root, "pub/repo/m-Q4_0.gguf", "pub/repo/m-Q8_0.gguf", "pub/repo/mmproj-m.gguf")
    stored = list(lm_studio.stored())
    assert [model.find() for model in stored] == paths[:2]
    for model in stored:
        assert locate_model(model.name) == model.find()
    with pytest.raises(CheckpointError) as caught:
        locate_model("lmstudio:pub/repo")
    assert str(caught.value) == (
        'load: "lmstudio:pub/repo" must hold one model, but holds 2: m-Q4_0.gguf, m-Q8_0.gguf. '
        'Name one of them: "lmstudio:pub/repo/m-Q4_0.gguf".'
    )


def test_a_model_in_parts_is_one_model(home: Path) -> None:
    folder = home / ".lmstudio" / "models" / "pub" / "repo"
    folder.mkdir(parents=True)
    parts = write_parts(folder)
    (stored,) = lm_studio.stored()
    assert stored.find() == parts[0]


def test_a_name_that_is_not_there_lists_close_ones(home: Path) -> None:
    write(home / ".lmstudio" / "models", "pub/repo/m.gguf")
    with pytest.raises(
        CheckpointError, match=r'none with that name. Did you mean "lmstudio:pub/re'
    ):
        locate_model("lmstudio:pub/rapo")
    with pytest.raises(CheckpointError, match="none with that name"):
        locate_model("lmstudio:pub/repo/other.gguf")


@pytest.mark.parametrize("name", ["lmstudio:", "lmstudio:pub", "lmstudio:pub/", "lmstudio:/repo"])
def test_a_name_without_its_parts_is_refused(home: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="must be lmstudio:publisher/repository or"):
        locate_model(name)


@pytest.mark.parametrize(
    "name", ["lmstudio:../..", "lmstudio:pub/../x", "lmstudio:pub/repo/../../x"]
)
def test_a_name_is_never_a_part_of_a_path(home: Path, name: str) -> None:
    write(home / ".lmstudio" / "models", "pub/repo/m.gguf")
    with pytest.raises(CheckpointError, match="none with that name"):
        locate_model(name)
