"""Models that Ollama has: a manifest for each name, and blobs named by their digest.

    models/manifests/registry.ollama.ai/library/llama3.2/latest    JSON: the layers, by digest
    models/blobs/sha256-…                                          a layer, such as a GGUF file

Newer versions write `manifests-v2` and the host `ollama.com`. A manifest is untrusted: the only
path built from its content is `blobs/sha256-` followed by 64 hexadecimal digits.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sinkstream.checkpoint.bounded_file import File, parse_json
from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.stores.folders import StoredModel, entries, subfolders
from sinkstream.errors import CheckpointError
from sinkstream.files import expand_home

PREFIX = "ollama:"
_MANIFESTS = ("manifests-v2", "manifests")  # the newer one counts
_DEFAULT_HOSTS = ("ollama.com", "registry.ollama.ai")
_LIBRARY, _LATEST = "library", "latest"
# The home folder of the account that Ollama's installer makes for its service.
_SERVICE = Path("/usr/share/ollama/.ollama/models")

_MAX_MANIFEST_BYTES = 1 << 20
_KIND = "application/vnd.ollama.image."
_MODEL, _ADAPTER, _TENSOR = _KIND + "model", _KIND + "adapter", _KIND + "tensor"
_LIST = "application/vnd.ollama.manifest.list.v2+json"
_RUNNERS = ("", "ollama", "llamacpp")  # which run GGUF files
_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")


@dataclass(frozen=True, slots=True)
class OllamaModel:
    """A name that Ollama lists."""

    name: str
    """As `load` takes it: `ollama:llama3.2`."""
    root: Path
    """The folder of Ollama's models."""
    manifest: Path


def roots() -> list[Path]:
    """Return the folders in which Ollama may keep models."""
    chosen = os.environ.get("OLLAMA_MODELS")
    if chosen:
        return [expand_home(chosen)]
    return [expand_home("~/.ollama/models"), _SERVICE]


def is_root(folder: Path) -> bool:
    """Return whether a folder is laid out as Ollama's models are."""
    names = {entry.name for entry in entries(folder)}
    return "blobs" in names and not names.isdisjoint(_MANIFESTS)


def stored() -> Iterator[StoredModel]:
    """Yield all models that Ollama has."""
    seen: set[str] = set()
    for root in roots():
        for model in models_in(root):
            if model.name.lower() not in seen:
                seen.add(model.name.lower())
                yield StoredModel(model.name, "ollama", partial(model_file, model))


def models_in(root: Path) -> Iterator[OllamaModel]:
    """Yield the models in a folder; if names are equal, only the one that Ollama uses."""
    seen: set[str] = set()
    for manifests in _MANIFESTS:
        for host in subfolders(root / manifests):
            for owner in subfolders(host):
                for model in subfolders(owner):
                    for tag in entries(model):
                        name = _shown(host.name, owner.name, model.name, tag.name)
                        if name.lower() not in seen:
                            seen.add(name.lower())
                            yield OllamaModel(name, root, Path(tag.path))


def locate(name: str) -> Path | None:
    """Find the GGUF file of a model; return None if Ollama has no such model.

    Args:
        name: `ollama:` followed by Ollama's name for it. The user's text is compared with names,
            and never becomes part of a path.

    Raises:
        CheckpointError: The name is malformed, or the model is incomplete or not supported.
    """
    wanted = _shown(*_parse(name)).lower()
    for root in roots():
        for model in models_in(root):
            if model.name.lower() == wanted:
                return model_file(model)
    return None


def model_file(model: OllamaModel) -> Path:
    """Return the GGUF file that a manifest names.

    Raises:
        CheckpointError: The manifest is damaged, or its model incomplete or not supported.
    """
    layers = _layers_of(model, _read(model.manifest, model.name))
    kinds = [kind for kind, _, _ in layers]
    if _ADAPTER in kinds:
        raise CheckpointError(
            f"load: {model.name} has a LoRA adapter, and adapters cannot be loaded. Merge it into "
            "its model first."
        )
    found = [layer for layer in layers if layer[0] == _MODEL]
    if not found and _TENSOR in kinds:
        raise CheckpointError(
            f"load: {model.name} must have a GGUF file, but has separate tensors, which only "
            "Ollama reads."
        )
    if len(found) != 1:
        hint = "" if found else " Ollama may run this model on its own servers."
        raise CheckpointError(
            f"load: {model.name} must have one layer with a model, but has {len(found)}.{hint}"
        )
    _, digest, size = found[0]
    path = _blob(model, digest)
    _check_complete(model, path, size)
    return path


def _parse(name: str) -> tuple[str, str, str, str]:
    """Return the host, the owner, the model and the tag of a name."""
    rest = name.removeprefix(PREFIX)
    head, colon, tag = rest.rpartition(":")
    if not colon or "/" in tag:
        head, tag = rest, _LATEST
    parts = head.split("/")
    if not all([*parts, tag]) or len(parts) > 3:
        raise CheckpointError(
            f"load: {quoted(name)} must be {PREFIX}model, {PREFIX}model:tag or "
            f"{PREFIX}owner/model:tag, but is not."
        )
    host = parts[0] if len(parts) == 3 else _DEFAULT_HOSTS[0]
    owner = parts[-2] if len(parts) > 1 else _LIBRARY
    return host, owner, parts[-1], tag


def _shown(host: str, owner: str, model: str, tag: str) -> str:
    """Return the shortest name, as Ollama shows it."""
    name = model if tag == _LATEST else f"{model}:{tag}"
    if host not in _DEFAULT_HOSTS:
        return f"{PREFIX}{host}/{owner}/{name}"
    return PREFIX + (name if owner == _LIBRARY else f"{owner}/{name}")


def _read(path: Path, name: str) -> dict[str, Any]:
    file = File(path, where=f"load: {name}")
    try:
        if file.size > _MAX_MANIFEST_BYTES:
            raise CheckpointError(
                f"load: the manifest of {name} must have at most {_MAX_MANIFEST_BYTES} bytes, but "
                f"has {file.size}."
            )
        if file.size == 0:
            raise CheckpointError(
                f"load: the manifest of {name} must be a JSON object, but is empty. Ollama may "
                "still be writing it."
            )
        content = file.read(0, file.size, "its text")
    finally:
        file.close()
    return parse_json(content, f"the manifest of {name}")


def _layers_of(model: OllamaModel, manifest: dict[str, Any]) -> list[tuple[str, str, int | None]]:
    """Return the kind, the digest and the size of every layer."""
    if manifest.get("mediaType") == _LIST:
        manifest = _child_of(model, manifest)
    layers = manifest.get("layers")
    if not isinstance(layers, list):
        raise _malformed(model, "`layers` must be a list", layers)
    found: list[tuple[str, str, int | None]] = []
    for layer in layers:
        kind = layer.get("mediaType") if isinstance(layer, dict) else None
        digest = layer.get("digest") if isinstance(layer, dict) else None
        if not isinstance(kind, str) or not isinstance(digest, str):
            raise _malformed(model, "a layer must have a `mediaType` and a `digest`", layer)
        size = layer.get("size")
        kind = kind.partition(";")[0].strip()
        found.append((kind, digest, size if type(size) is int else None))
    return found


def _child_of(model: OllamaModel, manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest for GGUF files from a list of manifests."""
    children = manifest.get("manifests")
    if not isinstance(children, list):
        raise _malformed(model, "`manifests` must be a list", children)
    for runner in _RUNNERS:
        for child in children:
            if not isinstance(child, dict) or str(child.get("runner", "")).lower() != runner:
                continue
            if "layers" in child:
                return child
            digest = child.get("digest")
            if not isinstance(digest, str):
                raise _malformed(model, "a manifest must have `layers` or a `digest`", child)
            return _read(_blob(model, digest), model.name)
    raise CheckpointError(
        f"load: {model.name} must have a GGUF file, but has only models for other programs."
    )


def _blob(model: OllamaModel, digest: str) -> Path:
    found = _DIGEST.fullmatch(digest)
    if found is None:
        raise _malformed(model, "a digest must be sha256: and 64 hexadecimal digits", digest)
    return model.root / "blobs" / f"sha256-{found[1].lower()}"


def _check_complete(model: OllamaModel, path: Path, size: int | None) -> None:
    pull = f"Run: ollama pull {model.name.removeprefix(PREFIX)}"
    if not os.path.lexists(path):
        if any(entry.name.startswith(path.name) for entry in entries(path.parent)):
            raise CheckpointError(
                f"load: {model.name} must be complete, but Ollama has fetched only a part of it. "
                f"Wait for it, or continue the download. {pull}"
            )
        raise CheckpointError(
            f"load: {model.name} must have the file {path.name}, but that is missing. {pull}"
        )
    try:
        found = path.stat().st_size
    except OSError:  # opening it will say why
        return
    if size is not None and found != size:
        raise CheckpointError(
            f"load: the file of {model.name} must have {size} bytes, as its manifest says, but has "
            f"{found}. {pull}"
        )


def _malformed(model: OllamaModel, rule: str, value: Any) -> CheckpointError:
    return CheckpointError(f"load: the manifest of {model.name}: {rule}, but is {quoted(value)}.")
