"""Models that LM Studio has: `models/publisher/repository/`, with one or several models in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from sinkstream.checkpoint.bounded_file import read_json, read_text
from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.stores.folders import (
    StoredModel,
    models_below,
    named_models,
    only_model_in,
    subfolders,
)
from sinkstream.errors import CheckpointError
from sinkstream.files import expand_home

PREFIX = "lmstudio:"
_POINTER = "~/.lmstudio-home-pointer"  # a file with the path of LM Studio's folder
_HOMES = ("~/.lmstudio", "~/.cache/lm-studio")
_MAX_POINTER_BYTES, _MAX_SETTINGS_BYTES = 1 << 12, 1 << 20


def roots() -> list[Path]:
    """Return the folders in which LM Studio may keep models."""
    homes = [expand_home(home) for home in _HOMES]
    with suppress(CheckpointError):  # there is none, or it is not one
        homes.insert(0, Path(read_text(expand_home(_POINTER), _MAX_POINTER_BYTES).strip()))
    found: list[Path] = []
    for home in homes:
        found += [chosen] if (chosen := _chosen_folder(home)) is not None else []
        found.append(home / "models")
    return list(dict.fromkeys(found))


def _chosen_folder(home: Path) -> Path | None:
    """Return the folder that a user has chosen in LM Studio's settings."""
    try:
        chosen = read_json(home / "settings.json", _MAX_SETTINGS_BYTES).get("downloadsFolder")
    except CheckpointError:
        return None
    return Path(chosen) if isinstance(chosen, str) and chosen else None


def stored() -> Iterator[StoredModel]:
    """Yield all models that LM Studio has."""
    for root in roots():
        for publisher in subfolders(root):
            for repository in subfolders(publisher):
                name = f"{PREFIX}{publisher.name}/{repository.name}"
                for full_name, path in named_models(name, repository):
                    yield StoredModel(full_name, "lmstudio", path.absolute)


def locate(name: str) -> Path | None:
    """Find a model; return None if LM Studio has no such model.

    Args:
        name: `lmstudio:publisher/repository`, or that and the name of a file in it.

    Raises:
        CheckpointError: The name is malformed, or the repository holds several models.
    """
    parts = name.removeprefix(PREFIX).split("/", 2)
    if len(parts) < 2 or not all(parts):
        raise CheckpointError(
            f"load: {quoted(name)} must be {PREFIX}publisher/repository or "
            f"{PREFIX}publisher/repository/file.gguf, but is not."
        )
    for root in roots():
        for publisher in subfolders(root):
            if publisher.name.lower() != parts[0].lower():
                continue
            for repository in subfolders(publisher):
                if repository.name.lower() != parts[1].lower():
                    continue
                if len(parts) == 2:
                    return only_model_in(repository, name)
                if (found := _file_in(repository, parts[2])) is not None:
                    return found
    return None


def _file_in(repository: Path, file: str) -> Path | None:
    """Return the file with this name, by comparing it with the existing names."""
    for path in models_below(repository):
        if str(path.relative_to(repository)).lower() == file.lower():
            return path
    return None
