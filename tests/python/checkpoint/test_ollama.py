"""Models that Ollama has: found by name, and never outside its folder, whatever manifests say."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sinkstream.checkpoint.stores import locate_model, ollama
from sinkstream.errors import CheckpointError, InvalidArgument
from sinkstream.loading.open_checkpoint import open_checkpoint
from tests.python.checkpoint.store_folders import (
    empty_home,
    layer,
    write_blob,
    write_ollama,
)

HEX = "ab" * 32
Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(ollama, "_SERVICE", tmp_path / "service")
    return empty_home(monkeypatch, tmp_path / "home") / ".ollama" / "models"


def refusal(name: str = "ollama:llama3.2") -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(name).source.close()
    return str(caught.value)


def manifest_of(root: Path) -> Path:
    return root / "manifests" / "registry.ollama.ai" / "library" / "llama3.2" / "latest"


@pytest.mark.parametrize(
    ("folder", "names"),
    [
        ("registry.ollama.ai/library/llama3.2/latest", ["llama3.2", "llama3.2:latest"]),
        ("registry.ollama.ai/library/llama3.2/3b", ["llama3.2:3b", "LLAMA3.2:3B"]),
        ("registry.ollama.ai/user/name/tag", ["user/name:tag", "ollama.com/user/name:tag"]),
        ("hf.co/user/name-GGUF/Q4_K_M", ["hf.co/user/name-GGUF:Q4_K_M"]),
    ],
)
def test_a_model_is_found_by_the_names_that_ollama_takes(
    root: Path, folder: str, names: list[str]
) -> None:
    path = write_ollama(root, folder)
    for name in names:
        assert locate_model(f"ollama:{name}") == path
    (stored,) = ollama.stored()
    assert stored.name.lower() == f"ollama:{names[0]}".lower()
    assert stored.find() == path
    open_checkpoint(stored.name).source.close()


def test_the_folder_is_that_of_the_environment_variable(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_ollama(root)
    path = write_ollama(tmp_path / "other", content=b"GGUF")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "other"))
    assert locate_model("ollama:llama3.2") == path


def test_the_folder_of_the_service_is_searched_too(root: Path, tmp_path: Path) -> None:
    path = write_ollama(tmp_path / "service")
    assert locate_model("ollama:llama3.2") == path


def test_a_newer_manifest_replaces_an_older_one(root: Path) -> None:
    write_ollama(root, content=b"old")
    path = write_ollama(root, "ollama.com/library/llama3.2/latest", manifests="manifests-v2")
    assert locate_model("ollama:llama3.2") == path
    assert [model.name for model in ollama.stored()] == ["ollama:llama3.2"]


def test_a_manifest_may_be_a_link_to_a_blob(root: Path) -> None:
    path = write_ollama(root)
    manifest = manifest_of(root)
    blob = root / "blobs" / f"sha256-{HEX}"
    manifest.rename(blob)
    manifest.symlink_to(os.path.relpath(blob, manifest.parent))
    assert locate_model("ollama:llama3.2") == path


@pytest.mark.parametrize("by_digest", [False, True])
def test_of_several_models_of_a_name_the_gguf_file_is_taken(root: Path, by_digest: bool) -> None:
    def nest(manifest: dict[str, Any]) -> None:
        child: dict[str, Any] = {**manifest, "runner": "ollama"}
        if by_digest:
            digest, _ = write_blob(root, json.dumps(manifest).encode())
            child = {"digest": digest, "runner": "ollama"}
        other = {"layers": [layer("tensor", f"sha256:{HEX}", 1)], "runner": "mlx"}
        manifest.clear()
        manifest["mediaType"] = "application/vnd.ollama.manifest.list.v2+json"
        manifest["manifests"] = [other, child]

    path = write_ollama(root, change=nest)
    assert locate_model("ollama:llama3.2") == path


def test_a_name_that_is_not_there_lists_close_ones(root: Path) -> None:
    write_ollama(root)
    write_ollama(root, "registry.ollama.ai/library/qwen3/0.6b")
    assert refusal("ollama:lama3.2") == (
        'load: "ollama:lama3.2" must be a model that Ollama has on this machine, but there is none '
        'with that name. Did you mean "ollama:llama3.2"?'
    )
    assert refusal("llama3.2").endswith('exists. Did you mean "ollama:llama3.2"?')
    assert refusal("ollama:qwen3").endswith('Did you mean "ollama:qwen3:0.6b"?')


@pytest.mark.parametrize(
    "name", ["ollama:", "ollama:a/b/c/d", "ollama:/a", "ollama:a:", "ollama:a//b"]
)
def test_a_name_that_ollama_would_not_take_is_refused(root: Path, name: str) -> None:
    assert "must be ollama:model, ollama:model:tag or ollama:owner/model:tag" in refusal(name)


@pytest.mark.parametrize("name", ["../../x", "..:latest", "%2e%2e/x", "a\0b", "*", "a:../../b"])
def test_a_name_is_never_a_part_of_a_path(root: Path, tmp_path: Path, name: str) -> None:
    write_ollama(root)
    (tmp_path / "home" / "x").mkdir()
    assert refusal(f"ollama:{name}").startswith("load: ")


def test_other_models_have_no_revision_and_no_download(root: Path) -> None:
    write_ollama(root)
    with pytest.raises(InvalidArgument, match=r"`revision` must be None unless .* is \"main\""):
        locate_model("ollama:llama3.2", "main")
    with pytest.raises(InvalidArgument, match="`download` must be False unless"):
        locate_model("ollama:llama3.2", download=True)


def _with(kind: str) -> Change:
    return lambda m: m["layers"].append(layer(kind, f"sha256:{HEX}", 1))


def _digest(value: Any) -> Change:
    return lambda m: m["layers"][0].update(digest=value)


def _layers(value: Any) -> Change:
    return lambda m: m.update(layers=value)


RULE = "load: the manifest of ollama:llama3.2: a digest must be sha256: and 64 hexadecimal digits, "


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_with("adapter"), "load: ollama:llama3.2 has a LoRA adapter, and adapters cannot be"),
        (_with("adapter; version=1"), "load: ollama:llama3.2 has a LoRA adapter"),
        (_with("model"), "load: ollama:llama3.2 must have one layer with a model, but has 2."),
        (_layers([]), "one layer with a model, but has 0. Ollama may run this model on"),
        (_layers([layer("tensor", "x", 1)]), "must have a GGUF file, but has separate tensors"),
        (_layers(None), "`layers` must be a list, but is null."),
        (_layers({}), "`layers` must be a list, but is {}."),
        (_layers([7]), "a layer must have a `mediaType` and a `digest`, but is 7."),
        (_layers([{"mediaType": 3, "digest": "x"}]), "a layer must have a `mediaType`"),
        (_digest("sha256:../../../etc/passwd"), RULE + 'but is "sha256:../../../etc/passwd".'),
        (_digest("/etc/passwd"), RULE),
        (_digest(f"sha256:{HEX}/../x"), RULE),
        (_digest(f"sha256:{HEX}\n"), RULE),
        (_digest(f"sha512:{HEX}"), RULE),
        (_digest(""), RULE),
        (
            _digest(f"sha256:{HEX}"),
            f"must have the file sha256-{HEX}, but that is missing. Run: ollama",
        ),
        (
            lambda m: m["layers"][0].update(size=3),
            "must have 3 bytes, as its manifest says, but has",
        ),
        (
            lambda m: m.update(mediaType="application/vnd.ollama.manifest.list.v2+json"),
            "`manifests` must be a list, but is null.",
        ),
        (
            lambda m: m.update(
                mediaType="application/vnd.ollama.manifest.list.v2+json",
                manifests=[{"runner": "mlx", "layers": []}, 7],
            ),
            "must have a GGUF file, but has only models for other programs.",
        ),
        (
            lambda m: m.update(
                mediaType="application/vnd.ollama.manifest.list.v2+json",
                manifests=[{"runner": "ollama", "digest": "sha256:../x"}],
            ),
            RULE,
        ),
    ],
)
def test_a_wrong_manifest_is_one_sentence(root: Path, change: Change, sentence: str) -> None:
    write_ollama(root, change=change)
    assert sentence in refusal()
    assert len(list(ollama.stored())) == 1  # it is listed, and says the same


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "the manifest of ollama:llama3.2 must be a JSON object, but is empty. Ollama may"),
        (b"{", "the manifest of ollama:llama3.2 must be valid JSON, but is not"),
        (b"[]", "the manifest of ollama:llama3.2 must be a JSON object, but is []"),
        (b"\xff\xfe", "must be valid JSON"),
        (b"[" * 100_000, "is nested too deeply"),
        (b" " * (1 << 20) + b"{}", "must have at most 1048576 bytes, but has 1048578."),
        (b'{"layers": ' + b"9" * 5000 + b"}", "must be valid JSON"),
    ],
)
def test_a_manifest_that_is_not_one_is_refused(root: Path, content: bytes, sentence: str) -> None:
    write_ollama(root)
    manifest_of(root).write_bytes(content)
    assert sentence in refusal()


def test_a_manifest_that_leads_nowhere_is_refused(root: Path) -> None:
    write_ollama(root)
    manifest_of(root).unlink()
    manifest_of(root).symlink_to("../gone")
    assert 'is a link to "../gone", which does not exist' in refusal()
    manifest_of(root).unlink()
    os.mkfifo(manifest_of(root))
    assert "must be a regular file" in refusal()


def test_a_blob_that_is_being_fetched_is_refused(root: Path) -> None:
    path = write_ollama(root)
    path.rename(f"{path}-partial")
    assert refusal() == (
        "load: ollama:llama3.2 must be complete, but Ollama has fetched only a part of it. Wait "
        "for it, or continue the download. Run: ollama pull llama3.2"
    )


def test_a_blob_that_is_a_dangling_link_is_refused(root: Path) -> None:
    path = write_ollama(root)
    path.unlink()
    path.symlink_to("gone")
    assert 'is a link to "gone", which does not exist' in refusal()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_has_no_models(root: Path) -> None:
    write_ollama(root)
    root.chmod(0)
    try:
        assert list(ollama.stored()) == []
    finally:
        root.chmod(0o700)


def test_a_folder_with_other_files_is_no_trouble(root: Path) -> None:
    write_ollama(root)
    for folder in (root / "manifests", *manifest_of(root).parents[:3]):
        (folder / ".DS_Store").touch()
        (folder / "README").touch()
    shutil.rmtree(root / "blobs")
    assert {model.name for model in ollama.stored()} == {
        "ollama:llama3.2",
        "ollama:llama3.2:README",
    }
