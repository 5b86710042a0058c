"""Models of the Hugging Face hub: in the cache of huggingface_hub, which is read without it.

hub/models--org--name/refs/main              the commit of a branch
hub/models--org--name/snapshots/<commit>/    its files: links to blobs

`fetch` is the only network access, and happens only if the user says so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from sinkstream.checkpoint.bounded_file import is_there, read_text
from sinkstream.checkpoint.quoting import first_line, quoted
from sinkstream.checkpoint.stores.folders import (
    StoredModel,
    entries,
    is_checkpoint,
    is_folder,
    models_below,
    named_models,
    only_model_in,
    subfolders,
)
from sinkstream.errors import CheckpointError
from sinkstream.files import expand_home

MAIN = "main"
NAME = re.compile(r"([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(/.+\.gguf)?", re.ASCII)
"""`org/name`, or that and a GGUF file in it."""
_FOLDER = re.compile(r"models--(.+?)--(.+)")
_REVISION = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-fA-F]{40,64}")
_MAX_REF_BYTES = 256
_FETCHED = ["*.json", "*.safetensors", "*.jinja"]  # no pickles, no code


def root() -> Path:
    """Return the folder of the cache, as huggingface_hub chooses it."""
    chosen = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if chosen:
        return expand_home(os.path.expandvars(chosen))
    if home := os.environ.get("HF_HOME"):
        return expand_home(os.path.expandvars(home)) / "hub"
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expand_home(cache) / "huggingface" / "hub"


def stored() -> Iterator[StoredModel]:
    """Yield all repositories in the cache that hold models, or will once downloaded."""
    for repository in subfolders(root()):
        found = _FOLDER.fullmatch(repository.name)
        if found is None:
            continue
        name = f"{found[1]}/{found[2]}"
        try:
            models = named_models(name, _snapshot(repository, name, MAIN))
            names = [full_name for full_name, _ in models] or [name] * _is_incomplete(repository)
        except CheckpointError:  # `find` raises it again
            names = [name]
        for full_name in names:
            yield StoredModel(full_name, "huggingface", partial(_must_locate, full_name))


def _must_locate(name: str) -> Path:
    found = locate(name)
    if found is None:
        raise CheckpointError(
            f"load: {quoted(name)} must be in the Hugging Face cache, but is not."
        )
    return found


def locate(name: str, revision: str | None = None) -> Path | None:
    """Find a model in the cache; return None if it is not there.

    Args:
        name: `org/name`, or that and a GGUF file in it; must match `NAME`.
        revision: Branch, tag or commit; by default, main.

    Raises:
        CheckpointError: The cache has the repository, but not its revision, not the file, or
            several GGUF files.
    """
    found = NAME.fullmatch(name)
    if found is None:
        return None
    repository = root() / f"models--{found[1].replace('/', '--')}"
    if not is_folder(repository):
        return None
    snapshot = _snapshot(repository, found[1], revision or MAIN)
    path = None
    if snapshot is not None and found[2] is None:
        path = only_model_in(snapshot, name)
    elif snapshot is not None:
        wanted = found[2][1:]
        files = (file for file in models_below(snapshot))
        path = next((file for file in files if str(file.relative_to(snapshot)) == wanted), None)
    is_found = path is not None and (path != snapshot or is_checkpoint(path))
    if not is_found and _is_incomplete(repository):
        raise CheckpointError(
            f"load: {quoted(name)} must be complete, but the Hugging Face cache has only a part of "
            "it. Wait until the rest is fetched, or set `download`."
        )
    return path


def _is_incomplete(repository: Path) -> bool:
    """Return whether a download is running or was interrupted."""
    return any(entry.name.endswith(".incomplete") for entry in entries(repository / "blobs"))


def _snapshot(repository: Path, name: str, revision: str) -> Path | None:
    """Return the folder of a revision; None if the cache does not have it."""
    if _REVISION.fullmatch(revision) is None or ".." in revision:
        raise CheckpointError(
            f"load: the revision of {quoted(name)} must be a branch, a tag or a commit, but is "
            f"{quoted(revision)}."
        )
    commit, ref = revision, repository / "refs" / revision
    if is_there(ref):
        commit = read_text(ref, _MAX_REF_BYTES).strip()
        if _COMMIT.fullmatch(commit) is None:
            raise CheckpointError(
                f"load: the commit of {quoted(name)} in the Hugging Face cache must be 40 "
                f"hexadecimal digits, but is {quoted(commit)}."
            )
    elif _COMMIT.fullmatch(revision) is None:
        return None
    snapshot = repository / "snapshots" / commit
    return snapshot if is_folder(snapshot) else None


def fetch(name: str, revision: str | None) -> Path:
    """Fetch a model's missing files into the cache of huggingface_hub.

    A `name` is `org/name`, for its weights and text files; or that and a GGUF file in it. Without a
    `revision`, main is fetched.

    Raises:
        CheckpointError: huggingface_hub is not installed, or fails.
    """
    found = NAME.fullmatch(name)
    repository, file = (found[1], found[2]) if found else (name, None)
    try:
        import huggingface_hub
    except ImportError:
        raise CheckpointError(
            f"load: {quoted(name)} cannot be fetched from the hub because huggingface_hub is not "
            "installed. Install it with: pip install huggingface_hub"
        ) from None
    try:
        folder = huggingface_hub.snapshot_download(
            repository,
            revision=revision,
            allow_patterns=_FETCHED if file is None else [_all_parts(file[1:])],
        )
    except Exception as error:  # its exception types differ between versions
        raise CheckpointError(
            f"load: {quoted(name)} could not be fetched from the hub: "
            f"{first_line(error).removeprefix('Got: ')}. Check the name and the network. "
            "A model that was fetched earlier loads without `download`."
        ) from error
    if file is not None:
        return Path(folder) / file[1:]
    path = only_model_in(Path(folder), name)
    if is_folder(path) and not is_checkpoint(path):
        raise CheckpointError(
            f"load: {quoted(name)} must have a config.json, but has none. If it has GGUF files, "
            f"name one of them: {quoted(f'{name}/file.gguf')}."
        )
    return path


def _all_parts(file: str) -> str:
    """Return a pattern for a file, or for all parts of it."""
    literal = re.sub(r"([*?\[])", r"[\1]", file)
    return re.sub(r"-[0-9]{5}-of-([0-9]{5}\.gguf)$", r"-*-of-\1", literal)
