"""Finds the file or folder of a model on this machine from the name that a user gives."""

from __future__ import annotations

import os.path
from pathlib import Path

from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.stores import hub_cache, lm_studio, ollama
from sinkstream.checkpoint.stores.fetching import fetch
from sinkstream.checkpoint.stores.folders import is_folder, only_model_in
from sinkstream.checkpoint.stores.listing import did_you_mean
from sinkstream.checkpoint.stores.packages import PACKAGES
from sinkstream.checkpoint.stores.packages import locate as locate_packaged
from sinkstream.errors import CheckpointError, InvalidArgument
from sinkstream.files import expand_home, home_hint

MODEL_VARIABLE = "SINKSTREAM_MODEL"
DEFAULT_MODEL = "smollm2"
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
