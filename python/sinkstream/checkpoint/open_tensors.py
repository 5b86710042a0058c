"""Opens a checkpoint of any format, except for its text: description and tensors."""

from __future__ import annotations

import os

from sinkstream.checkpoint.checkpoint import TensorsOnly
from sinkstream.checkpoint.formats.folder import open_folder
from sinkstream.checkpoint.formats.gguf import open_gguf
from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.stores import locate_model
from sinkstream.checkpoint.stores.folders import is_folder
from sinkstream.errors import CheckpointError


def open_tensors(
    path: str | os.PathLike[str] | None = None,
    *,
    revision: str | None = None,
    download: bool = False,
    headers_only: bool = False,
) -> TensorsOnly:
    """Open a checkpoint without its text format. Arguments and errors as `open_checkpoint`.

    If `headers_only`, no tensor of a folder is read to find out whether the output head is tied.
    """
    found = locate_model(path, revision, download=download)
    found = found.absolute()  # so that "." has a name in errors
    if found.suffix == ".safetensors" and found.is_file():
        raise CheckpointError(
            f"load: {quoted(found.name)} must be a GGUF file or a Hugging Face folder, but is a "
            "safetensors file. Pass the folder that holds it."
        )
    return open_folder(found, headers_only) if is_folder(found) else open_gguf(found)
