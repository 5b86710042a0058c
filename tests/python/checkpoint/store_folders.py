"""Writes the folders of other programs: Ollama's, LM Studio's and the Hugging Face cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.python.checkpoint.gguf_bytes import llama_bytes

KIND = "application/vnd.ollama.image."
COMMIT = "0123456789abcdef0123456789abcdef01234567"
VARIABLES = (
    "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "OLLAMA_MODELS", "SINKSTREAM_MODEL",
    "SINKSTREAM_MODELS", "XDG_CACHE_HOME",
)  # fmt: skip


def empty_home(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Make a folder the home folder, with no other store in sight."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    (folder / "work").mkdir(parents=True)
    monkeypatch.chdir(folder / "work")
    return folder


def write_blob(root: Path, content: bytes) -> tuple[str, int]:
    """Write a blob of Ollama; return its digest and its size."""
    digest = hashlib.sha256(content).hexdigest()
    (root / "blobs").mkdir(parents=True, exist_ok=True)
    (root / "blobs" / f"sha256-{digest}").write_bytes(content)
    return f"sha256:{digest}", len(content)


def layer(kind: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": KIND + kind, "digest": digest, "size": size}


def write_ollama(
    root: Path,
    name: str = "registry.ollama.ai/library/llama3.2/latest",
    change: Callable[[dict[str, Any]], object] = lambda manifest: None,
    *,
    manifests: str = "manifests",
    content: bytes | None = None,
) -> Path:
    """Write a model as Ollama does, after `change` has had the manifest; return its GGUF file."""
    digest, size = write_blob(root, llama_bytes().build() if content is None else content)
    config, config_size = write_blob(root, b'{"model_format":"gguf"}')
    template, template_size = write_blob(root, b"{{ .Prompt }}")
    manifest: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": layer("config", config, config_size),
        "layers": [layer("model", digest, size), layer("template", template, template_size)],
    }
    change(manifest)
    path = root / manifests / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(manifest))
    return root / "blobs" / digest.replace(":", "-")


def write_snapshot(
    cache: Path, name: str, files: dict[str, bytes], *, commit: str = COMMIT, ref: str = "main"
) -> Path:
    """Write a repository of the Hugging Face cache; return its snapshot."""
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit
    for file, content in files.items():
        blob = repository / "blobs" / hashlib.sha256(content).hexdigest()
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        link = snapshot / file
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    (repository / "refs" / ref).parent.mkdir(parents=True, exist_ok=True)
    (repository / "refs" / ref).write_text(commit)
    return snapshot
