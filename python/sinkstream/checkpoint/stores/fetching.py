"""Fetches a repository of the Hugging Face hub if the user says so: the only network access."""

from __future__ import annotations

import re
from pathlib import Path

from sinkstream.checkpoint.quoting import first_line, quoted
from sinkstream.checkpoint.stores import hub_cache
from sinkstream.checkpoint.stores.folders import is_checkpoint, is_folder, only_model_in
from sinkstream.errors import CheckpointError

_FILES = ["*.json", "*.safetensors", "*.jinja"]  # no pickles, no code


def fetch(name: str, revision: str | None) -> Path:
    """Fetch a model's missing files into the cache of huggingface_hub.

    Args:
        name: `org/name`, for its weights and text files; or that and a GGUF file in it.
        revision: Branch, tag or commit; by default, main.

    Raises:
        CheckpointError: huggingface_hub is not installed, or fails.
    """
    found = hub_cache.NAME.fullmatch(name)
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
            allow_patterns=_FILES if file is None else [_all_parts(file[1:])],
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
