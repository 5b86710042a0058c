"""The models in a folder: a Hugging Face folder itself, or the GGUF files in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sinkstream.checkpoint.formats.gguf import part_name
from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError

CONFIG = "config.json"
_REPOSITORY_DEPTH = 2  # folders in a repository: one for each quantization is common
_MAX_LISTED = 8
_PROJECTOR = "mmproj"  # how converters name the vision part of a model, which is a file of its own


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model as a store lists it: a name, and where it is."""

    name: str
    """As `load` takes it."""
    store: str
    """`"folder"`, `"huggingface"`, `"lmstudio"`, `"ollama"` or `"package"`."""
    find: Callable[[], Path]
    """Return the file or the folder; raise what `load` would raise."""


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return what a folder holds, sorted by name, without hidden files; nothing if unreadable."""
    try:
        with os.scandir(folder) as found:
            shown = [entry for entry in found if not entry.name.startswith(".")]
    except (OSError, ValueError):
        return []
    return sorted(shown, key=lambda entry: entry.name)


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder that can be accessed."""
    try:
        return path.is_dir()
    except OSError:  # a folder above it may not be searched
        return False


def subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder; links to folders count."""
    return [path for entry in entries(folder) if is_folder(path := Path(entry.path))]


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder is to be opened as a whole.

    A repository of GGUF files may have a config.json of the original model.
    """
    names = {entry.name for entry in entries(folder)}
    if CONFIG not in names:
        return False
    return any(name.endswith((".safetensors", ".bin")) for name in names) or not gguf_files(folder)


def gguf_files(folder: Path) -> list[Path]:
    """Return the GGUF models in a folder; for a set of parts, the first part that exists."""
    found: list[Path] = []
    seen: set[tuple[str, int]] = set()
    for entry in entries(folder):
        name = entry.name
        if (
            not name.lower().endswith(".gguf")
            or _PROJECTOR in name.lower()
            or is_folder(Path(entry.path))
        ):
            continue
        parsed = part_name(name)
        if parsed is not None and (key := (parsed.stem, parsed.count)) in seen:
            continue
        if parsed is not None:
            seen.add(key)
        found.append(Path(entry.path))
    return found


def models_below(folder: Path, depth: int = _REPOSITORY_DEPTH) -> Iterator[Path]:
    """Yield the models in a folder and its subfolders: files, and Hugging Face folders."""
    yield from _models_below(folder, depth, set())


def _models_below(folder: Path, depth: int, seen: set[tuple[int, int]]) -> Iterator[Path]:
    try:
        status = folder.stat()
    except (OSError, ValueError):
        return
    if (status.st_dev, status.st_ino) in seen:  # links may form a loop
        return
    seen.add((status.st_dev, status.st_ino))
    if is_checkpoint(folder):
        yield folder
    yield from gguf_files(folder)
    if depth > 0:
        for inner in subfolders(folder):
            yield from _models_below(inner, depth - 1, seen)


def named_models(name: str, folder: Path | None) -> list[tuple[str, Path]]:
    """Return the models in a repository, each with the name that `only_model_in` takes."""
    found = [] if folder is None else list(models_below(folder))
    if folder is None or folder in found:
        return [(name, path) for path in found if path == folder]
    if len(found) == 1:
        return [(name, found[0])]
    return [(f"{name}/{path.relative_to(folder)}", path) for path in found]


def only_model_in(folder: Path, name: str) -> Path:
    """Return the model that a folder holds: itself, or its only GGUF file.

    Raises:
        CheckpointError: It holds several GGUF files, and no other model; the message has the
            `name` that the user gave.
    """
    if is_checkpoint(folder):
        return folder
    found = [path for path in models_below(folder) if path != folder]
    if len(found) > 1:
        files = [str(path.relative_to(folder)) for path in found]
        more = f" and {len(files) - _MAX_LISTED} more" if len(files) > _MAX_LISTED else ""
        listed = ", ".join(files[:_MAX_LISTED])
        raise CheckpointError(
            f"load: {quoted(name)} must hold one model, but holds {len(files)}: {listed}{more}. "
            f"Name one of them: {quoted(f'{name}/{files[0]}')}."
        )
    return found[0] if found else folder
