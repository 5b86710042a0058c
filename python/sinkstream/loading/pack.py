"""Packs a model's weights ahead of its first load."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from sinkstream import _core
from sinkstream.checkpoint.open_tensors import open_tensors
from sinkstream.errors import InvalidArgument
from sinkstream.loading.load import _begin_to_read, _choose_threads, _declare, _finish_reading
from sinkstream.loading.open_checkpoint import as_quantization, rounded
from sinkstream.loading.panels import FOLDER_VARIABLE, Panels, default_folder
from sinkstream.streams.live import Progress


def pack(
    path: str | os.PathLike[str] | None = None,
    *,
    quantize: str | None = None,
    threads: int | None = None,
    download: bool = False,
    read: Progress | None = None,
    written: Progress | None = None,
) -> tuple[Path, int]:
    """Write the panel file of a model, in place of one that is there, and return its path and size.

    Memory holds all weights meanwhile, as when the model is loaded.

    Args:
        path: As for `load`.
        quantize: As for `load`; a file serves loads with the same value.
        threads: As for `load`.
        download: As for `load`.
        read: Called with (bytes read, total bytes) of the model's files.
        written: Called with (bytes written, total bytes) of the panel file.

    Raises:
        CheckpointError: The checkpoint is missing, damaged, or unsupported.
        InvalidArgument: An argument is out of range, the file is larger than all together may be,
            or there is no folder for it.
        CapacityError: The system cannot provide the memory.
        OSError: The file cannot be written.
    """
    storage = as_quantization(quantize)
    count = _core.usable_threads() if threads is None else _choose_threads(threads)
    if (folder := default_folder()) is None:
        raise InvalidArgument(
            f"pack: ${FOLDER_VARIABLE} must name a folder, because there is no default one."
        )
    with ExitStack() as at_the_end:
        opened = open_tensors(path, download=download)
        at_the_end.callback(opened.source.close)
        opened = rounded(opened, storage)
        panels = Panels(folder, opened, is_wanted=True)
        builder = _core.ModelBuilder(opened.spec.as_dict())
        at_the_end.callback(builder.stop_reading)
        for tensor in opened.tensors:
            _declare(builder, tensor)
        _begin_to_read(builder, opened, count)
        _finish_reading(builder, opened, read)
        total = builder.bytes_needed
        panels.write(builder, lambda done: None if written is None else written(done, total))
    return panels.path, total
