"""`list_models()`: the models on this machine, and whether each can be loaded."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sinkstream.checkpoint.checkpoint import GgufText, TensorsOnly
from sinkstream.checkpoint.describe import Description, describe, describe_opened
from sinkstream.checkpoint.open_tensors import open_tensors
from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.stores import (
    chosen_folders,
    models_in_folders,
    named_models,
    unreadable_folders,
)
from sinkstream.checkpoint.stores.folders import StoredModel
from sinkstream.errors import InvalidArgument, SinkstreamError, warn_caller
from sinkstream.files import expand_home
from sinkstream.text.tokenizers.from_gguf import check_tokenizer


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model on this machine. A field is None if the model's files do not state it."""

    name: str
    """The name that `load` accepts."""
    store: str
    """Where it was found: `"folder"`, `"huggingface"`, `"lmstudio"`, `"ollama"` or `"package"`."""
    path: str | None
    """The file or the folder; None if there is no complete one, as `problem` says."""
    family: str | None
    """The `general.architecture` of a GGUF file, the `model_type` of a folder."""
    quantization: str | None
    """`"Q4_K_M"`, `"BF16"`, …"""
    file_bytes: int | None
    """The size of the files with its weights."""
    problem: str | None
    """The error that `load` would raise; None if the headers show none."""

    @property
    def loads(self) -> bool:
        """Return whether `load` would accept the model, judging by its headers."""
        return self.problem is None


def list_models(
    *folders: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None
) -> list[ListedModel]:
    """List the models in Ollama, LM Studio, the Hugging Face cache, packages and folders.

    Only headers are read, never weights, and tokenizers are not built, so a damaged tokenizer is
    detected only when the model is loaded. Nothing is fetched.

    Args:
        *folders: Additional folders (searched with their subfolders) and files. Those that the
            environment variable SINKSTREAM_MODELS lists are always included.
        progress: Called with (models read, models found).

    Returns:
        The models, grouped by store; each can be loaded by its `name` if `loads` is true.

    Raises:
        InvalidArgument: A folder does not exist.

    Example:
        >>> for model in sinkstream.list_models():
        ...     print(model.name, model.family, model.quantization, model.problem or "loads")
    """
    given = [expand_home(folder) for folder in folders]
    for folder in given:
        if not os.path.lexists(folder):
            raise InvalidArgument(
                f"list_models: a folder must exist, but {quoted(str(folder))} does not.",
                param="folders",
            )
    for root in unreadable_folders():
        warn_caller(
            f"list_models: folder {quoted(str(root))} should be readable, but is not. Its models "
            "are not listed."
        )
    found = [*named_models(), *models_in_folders([*given, *chosen_folders()])]
    listed: list[ListedModel] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for done, model in enumerate(found):
            if progress is not None:
                progress(done, len(found))
            row = _read(model)
            if row.store != "folder" or all(row.path != other.path for other in listed):
                listed.append(row)
    if progress is not None:
        progress(len(found), len(found))
    return listed


def _read(model: StoredModel) -> ListedModel:
    try:
        path = model.find()
    except SinkstreamError as error:
        return _row(model, None, None, str(error))
    try:
        opened = open_tensors(path, headers_only=True)
        opened.source.close()
    except SinkstreamError as error:
        return _row(model, path, describe(path), str(error))
    return _row(model, path, describe_opened(opened), _problem_of_text(opened))


def _problem_of_text(opened: TensorsOnly) -> str | None:
    """Return the error for an unknown tokenizer."""
    try:
        if isinstance(opened.text, GgufText):
            check_tokenizer(opened.text.metadata)
    except SinkstreamError as error:
        return str(error)
    return None


def _row(
    model: StoredModel, path: Path | None, found: Description | None, problem: str | None
) -> ListedModel:
    return ListedModel(
        name=model.name,
        store=model.store,
        path=None if path is None else str(path),
        family=None if found is None else found.family,
        quantization=None if found is None else found.quantization,
        file_bytes=None if found is None else found.file_bytes,
        problem=problem,
    )
