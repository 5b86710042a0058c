"""Models on this machine by the names that users give: found, and listed.

Other programs keep most of them: one module per program. Each finds a model by its name and lists
the names that it has. Their folders are only read, none of these programs is run, and nothing is
fetched unless the user says so.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.stores import hub_cache, lm_studio, ollama, packages
from sinkstream.checkpoint.stores.folders import StoredModel, is_folder, models_below, only_model_in
from sinkstream.checkpoint.stores.hub_cache import fetch
from sinkstream.checkpoint.stores.packages import PACKAGES
from sinkstream.checkpoint.stores.packages import locate as locate_packaged
from sinkstream.errors import CheckpointError, InvalidArgument
from sinkstream.files import expand_home, home_hint

MODEL_VARIABLE = "SINKSTREAM_MODEL"
DEFAULT_MODEL = "smollm2"
FOLDERS_VARIABLE = "SINKSTREAM_MODELS"
_MOST_CLOSE = 3
_DEPTH = 8  # folders below one that a user names
_STORES = {
    ollama.PREFIX: ("Ollama", ollama.locate),
    lm_studio.PREFIX: ("LM Studio", lm_studio.locate),
}


def locate_model(
    path: str | os.PathLike[str] | None, revision: str | None = None, *, download: bool = False
) -> Path:
    """Find the file or folder of a model.

    Args:
        path: A `.gguf` file, a Hugging Face folder, a folder with one GGUF file, "smollm2",
            "ollama:name", "lmstudio:publisher/repository", or the "org/name" of a repository in
            the Hugging Face cache. If None, `$SINKSTREAM_MODEL`, or else "smollm2". To open a local
            file with the name of a model, write "./smollm2".
        revision: Branch, tag or commit of a hub repository.
        download: Whether to fetch a hub repository, or what has changed in it.

    Raises:
        CheckpointError: The model does not exist, or cannot be fetched.
        InvalidArgument: `revision` or `download` is given for something other than a hub
            repository.
    """
    if path is None:
        path = os.environ.get(MODEL_VARIABLE) or DEFAULT_MODEL
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(name, str):
        raise TypeError(
            f"load: `path` must be a string or a path, but is of type {type(path).__name__}."
        )
    found = expand_home(name)
    # A link whose target is gone is local, too: opening it says what is missing.
    is_local = name != "" and os.path.lexists(found)
    has_own_name = name in PACKAGES or name.startswith(tuple(_STORES))
    if hub_cache.NAME.fullmatch(name) and not has_own_name and not is_local:
        return fetch(name, revision) if download else _from_cache(name, revision)
    for option, value, neutral in (("revision", revision, None), ("download", download, False)):
        if value != neutral:
            raise InvalidArgument(
                f"load: `{option}` must be {neutral} unless the model is named `org/name`, as on "
                f"the hub, but is {quoted(value)}.",
                param=option,
            )
    if name in PACKAGES:
        return locate_packaged(name)
    if has_own_name:
        return _from_store(name)
    if not is_local:
        raise CheckpointError(
            f"load: {quoted(name)} must be a GGUF file, a Hugging Face folder, or a name that "
            "`sinkstream models` lists, but nothing with that name exists."
            f"{home_hint(found) or did_you_mean(name)}"
        )
    return only_model_in(found, name) if is_folder(found) else found


def is_model_name(text: str) -> bool:
    """Return whether a text is one word that names a model on this machine."""
    if text.split() != [text]:
        return False
    try:
        found = locate_model(text)
    except (CheckpointError, InvalidArgument):
        return False
    return text.startswith(tuple(_STORES)) or found.suffix == ".gguf" or is_folder(found)


def _from_store(name: str) -> Path:
    program, locate = _STORES[name[: name.index(":") + 1]]
    found = locate(name)
    if found is None:
        raise CheckpointError(
            f"load: {quoted(name)} must be a model that {program} has on this machine, but there "
            f"is none with that name.{did_you_mean(name)}"
        )
    return found


def _from_cache(name: str, revision: str | None) -> Path:
    found = hub_cache.locate(name, revision)
    if found is None:
        which = "" if revision is None else f" with revision {quoted(revision)}"
        raise CheckpointError(
            f"load: {quoted(name)} must be a local file, a local folder, or a model in the Hugging "
            f"Face cache{which}, but is not.{did_you_mean(name)} Set `download` to fetch it from "
            "the hub."
        )
    return found


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
