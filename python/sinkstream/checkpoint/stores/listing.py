"""All named models on this machine, and the names that are close to a wrong one."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.stores import hub_cache, lm_studio, ollama, packages
from sinkstream.checkpoint.stores.folders import is_folder, models_below
from sinkstream.checkpoint.stores.stored_model import StoredModel
from sinkstream.errors import CheckpointError
from sinkstream.files import expand_home

FOLDERS_VARIABLE = "SINKSTREAM_MODELS"
_MOST_CLOSE = 3
_DEPTH = 8  # folders below one that a user names


def named_models() -> Iterator[StoredModel]:
    """Yield the models of every store."""
    stores = (packages, ollama, lm_studio, hub_cache)
    return chain.from_iterable(store.stored() for store in stores)


def models_in_folders(folders: Sequence[Path]) -> Iterator[StoredModel]:
    """Yield the models in folders, by their paths; folders in Ollama's layout count."""
    for folder in folders:
        if not is_folder(folder) and os.path.lexists(folder):
            yield StoredModel(str(folder), "folder", folder.absolute)
        for path in models_below(folder, _DEPTH):
            yield StoredModel(str(path), "folder", path.absolute)
        for root in (folder, folder / "models"):
            if ollama.is_root(root):
                yield from _of_ollama(root)


def unreadable_folders() -> list[Path]:
    """Return the folders of stores that exist but may not be read."""
    roots = [*ollama.roots(), *lm_studio.roots(), hub_cache.root(), *chosen_folders()]
    return [root for root in dict.fromkeys(roots) if _is_forbidden(root)]


def _is_forbidden(folder: Path) -> bool:
    try:
        os.scandir(folder).close()
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return False


def chosen_folders() -> list[Path]:
    """Return the folders that the environment variable SINKSTREAM_MODELS lists."""
    listed = os.environ.get(FOLDERS_VARIABLE, "")
    return [expand_home(folder) for folder in listed.split(os.pathsep) if folder]


def close_names(name: str) -> list[str]:
    """Return names of models that a user may have meant, closest first."""
    wanted = _without_prefix(name).lower()
    names: dict[str, list[str]] = {}
    for model in named_models():
        names.setdefault(_without_prefix(model.name).lower(), []).append(model.name)
    similar = difflib.get_close_matches(wanted, names, n=_MOST_CLOSE, cutoff=0.6)
    holding = [known for known in names if wanted and wanted in known]
    keys = dict.fromkeys([*similar, *holding])
    return list(dict.fromkeys(chain.from_iterable(names[key] for key in keys)))[:_MOST_CLOSE]


def _without_prefix(name: str) -> str:
    for prefix in (ollama.PREFIX, lm_studio.PREFIX):
        name = name.removeprefix(prefix)
    return name


def did_you_mean(name: str) -> str:
    """Return a sentence with the names that are close to a wrong one, or nothing."""
    found = [quoted(known) for known in close_names(name)]
    if not found:
        return ""
    *others, last = found
    return f" Did you mean {', '.join(others) + ' or ' if others else ''}{last}?"


def _of_ollama(root: Path) -> Iterator[StoredModel]:
    """Yield models from a folder that Ollama does not search, by the paths of their blobs."""
    for model in ollama.models_in(root):
        try:
            name = str(ollama.model_file(model))
        except CheckpointError:
            name = model.name
        yield StoredModel(name, "ollama", partial(ollama.model_file, model))
