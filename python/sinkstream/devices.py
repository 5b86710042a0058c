"""The GPU that models can run on, if there is one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sinkstream import _core


@dataclass(frozen=True, slots=True)
class Gpu:
    """What `sinkstream info` says of a GPU."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    total_bytes: int
    free_bytes: int
    """When it was looked for."""


def cuda_library_path() -> str:
    """Return the path of the library with the CUDA kernels, whether or not there is one.

    The environment variable SINKSTREAM_CUDA_LIBRARY names another: tests put a GPU there that is
    this processor.
    """
    beside = Path(_core.__file__).with_name("_cuda.so")
    return os.environ.get("SINKSTREAM_CUDA_LIBRARY") or str(beside)


def find_gpu() -> Gpu | str:
    """Return the GPU, or a sentence that says why there is none."""
    found = _core.find_gpu(cuda_library_path())
    problem = found.pop("problem")
    return str(problem) if problem else Gpu(**found)
